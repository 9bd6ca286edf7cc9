"""What tests of exactness are made of: table targets, tokenizers, drafters, scripted draws and machines, exact laws."""

from specframe.testing.drafters import Adversary, Faulty, LogitsDrafter, Oracle, RandomOffers, RecordedSession
from specframe.testing.enumerator import (
    Outcome,
    distance,
    first_token_law,
    fractions,
    round_law,
    sequence_law,
    target_law,
)
from specframe.testing.integrator import Integrand, LawRow, integrate, real_round_law, run_verify
from specframe.testing.machine import Machine, ScriptedDrafter
from specframe.testing.scripted import GumbelKey, ScriptedRandom, ScriptEnded, UniformKey
from specframe.testing.table import Call, TableSession, TableTarget
from specframe.testing.tokenizers import byte_tokenizer, sentencepiece_tokenizer

__all__ = [
    "Adversary",
    "Call",
    "Faulty",
    "GumbelKey",
    "Integrand",
    "LawRow",
    "LogitsDrafter",
    "Machine",
    "Oracle",
    "Outcome",
    "RandomOffers",
    "RecordedSession",
    "ScriptEnded",
    "ScriptedDrafter",
    "ScriptedRandom",
    "TableSession",
    "TableTarget",
    "UniformKey",
    "byte_tokenizer",
    "distance",
    "first_token_law",
    "fractions",
    "integrate",
    "real_round_law",
    "round_law",
    "run_verify",
    "sentencepiece_tokenizer",
    "sequence_law",
    "target_law",
]
