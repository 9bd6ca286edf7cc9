"""What tests of exactness are made of: certificates, table targets, small tokenizers, drafters, scripted draws, exact laws.

``certify`` and ``certify_strategy`` run all of it on a drafter. Names are imported when they are first used: pytest imports
this package for its plugin, in test runs that have nothing to do with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.testing.certificate import Certificate, Check
    from specframe.testing.certifier import certify, certify_strategy
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
    from specframe.testing.exhaustive import output_law, plain_law
    from specframe.testing.faults import Fault, failing
    from specframe.testing.grammars import CycleGrammar
    from specframe.testing.integrator import Integrand, LawRow, integrate, real_round_law, run_verify
    from specframe.testing.machine import Machine, ScriptedDrafter
    from specframe.testing.plan import FULL, QUICK, Plan
    from specframe.testing.scripted import GumbelKey, ScriptedRandom, ScriptEnded, UniformKey
    from specframe.testing.table import Call, TableSession, TableTarget, random_table
    from specframe.testing.tokenizers import byte_tokenizer, sentencepiece_tokenizer

_LAZY = {
    "Adversary": "drafters",
    "Call": "table",
    "Certificate": "certificate",
    "Check": "certificate",
    "CycleGrammar": "grammars",
    "FULL": "plan",
    "Fault": "faults",
    "Faulty": "drafters",
    "GumbelKey": "scripted",
    "Integrand": "integrator",
    "LawRow": "integrator",
    "LogitsDrafter": "drafters",
    "Machine": "machine",
    "Oracle": "drafters",
    "Outcome": "enumerator",
    "Plan": "plan",
    "QUICK": "plan",
    "RandomOffers": "drafters",
    "RecordedSession": "drafters",
    "ScriptEnded": "scripted",
    "ScriptedDrafter": "machine",
    "ScriptedRandom": "scripted",
    "TableSession": "table",
    "TableTarget": "table",
    "UniformKey": "scripted",
    "byte_tokenizer": "tokenizers",
    "certify": "certifier",
    "certify_strategy": "certifier",
    "distance": "enumerator",
    "failing": "faults",
    "first_token_law": "enumerator",
    "fractions": "enumerator",
    "integrate": "integrator",
    "output_law": "exhaustive",
    "plain_law": "exhaustive",
    "random_table": "table",
    "real_round_law": "integrator",
    "round_law": "enumerator",
    "run_verify": "integrator",
    "sentencepiece_tokenizer": "tokenizers",
    "sequence_law": "enumerator",
    "target_law": "enumerator",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'specframe.testing' has no attribute '{name}'")
    value = getattr(import_module(f"specframe.testing.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "FULL",
    "QUICK",
    "Adversary",
    "Call",
    "Certificate",
    "Check",
    "CycleGrammar",
    "Fault",
    "Faulty",
    "GumbelKey",
    "Integrand",
    "LawRow",
    "LogitsDrafter",
    "Machine",
    "Oracle",
    "Outcome",
    "Plan",
    "RandomOffers",
    "RecordedSession",
    "ScriptEnded",
    "ScriptedDrafter",
    "ScriptedRandom",
    "TableSession",
    "TableTarget",
    "UniformKey",
    "byte_tokenizer",
    "certify",
    "certify_strategy",
    "distance",
    "failing",
    "first_token_law",
    "fractions",
    "integrate",
    "output_law",
    "plain_law",
    "random_table",
    "real_round_law",
    "round_law",
    "run_verify",
    "sentencepiece_tokenizer",
    "sequence_law",
    "target_law",
]
