"""Exact speculative decoding for transformers models, as a plugin framework.

A drafter can make generation slower, never different. The public API is what ``__all__`` names; what needs torch is
imported when it is first used, so that a plugin module or ``specframe plugins`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specframe._version import __version__
from specframe.cancel import CancelToken
from specframe.errors import (
    CacheError,
    CacheFolderError,
    DrafterExhausted,
    EngineBusy,
    GenerationError,
    GrammarError,
    IncompatibleManifest,
    InvalidGrammar,
    InvalidManifest,
    InvalidPlan,
    InvalidReceipt,
    InvalidRequest,
    InvalidResults,
    InvalidStrategy,
    InvalidWorkload,
    LoadError,
    MissingPackage,
    OverBudget,
    PluginError,
    ProposalError,
    ResultsNotWritten,
    SpecframeError,
    StaleEpoch,
    StreamNotFinished,
    TargetError,
    UnknownName,
    UnsupportedModel,
    WorkerError,
    WorkerRestarting,
)
from specframe.grammar import Forced, Grammar, TextGrammar
from specframe.hookspecs import hookimpl
from specframe.proposal import (
    Commit,
    Drafter,
    DraftRequest,
    DraftSession,
    Features,
    HoldsTensors,
    Needs,
    Round,
    TargetFacts,
    TokenView,
    Views,
)

if TYPE_CHECKING:
    from specframe.custom_generate import as_custom_generate
    from specframe.distribution import Distribution
    from specframe.engine import Engine
    from specframe.generation import Piece
    from specframe.loading import LoadedDraft, load, load_draft, load_target
    from specframe.manifest.identity import Manifest
    from specframe.positions import PositionStats
    from specframe.processors import pure
    from specframe.receipt import Receipt
    from specframe.records import DrafterShare, DrafterStats, Event, RoundRecord, Stats
    from specframe.replay import Difference, Replay
    from specframe.request import Arguments
    from specframe.sampling import SamplingPolicy
    from specframe.strategy import DrafterUse, Identity, Length, Strategy
    from specframe.stream import Result, Stream
    from specframe.target import Target, TargetSession, Ticket, Verification
    from specframe.text import TokenBytes
    from specframe.transformers_target import TransformersTarget

_LAZY = {
    "Arguments": "request",
    "Difference": "replay",
    "DrafterShare": "records",
    "DrafterStats": "records",
    "DrafterUse": "strategy",
    "Distribution": "distribution",
    "Engine": "engine",
    "Event": "records",
    "Identity": "strategy",
    "Length": "strategy",
    "LoadedDraft": "loading",
    "Manifest": "manifest.identity",
    "Piece": "generation",
    "PositionStats": "positions",
    "Receipt": "receipt",
    "Replay": "replay",
    "Result": "stream",
    "RoundRecord": "records",
    "SamplingPolicy": "sampling",
    "Stats": "records",
    "Strategy": "strategy",
    "Stream": "stream",
    "Target": "target",
    "TargetSession": "target",
    "Ticket": "target",
    "TokenBytes": "text",
    "TransformersTarget": "transformers_target",
    "Verification": "target",
    "as_custom_generate": "custom_generate",
    "load": "loading",
    "load_draft": "loading",
    "load_target": "loading",
    "pure": "processors",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'specframe' has no attribute '{name}'")
    value = getattr(import_module(f"specframe.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "Arguments",
    "CacheError",
    "CacheFolderError",
    "CancelToken",
    "Commit",
    "Difference",
    "Distribution",
    "DraftRequest",
    "DraftSession",
    "Drafter",
    "DrafterExhausted",
    "DrafterShare",
    "DrafterStats",
    "DrafterUse",
    "Engine",
    "EngineBusy",
    "Event",
    "Features",
    "Forced",
    "GenerationError",
    "Grammar",
    "GrammarError",
    "HoldsTensors",
    "Identity",
    "IncompatibleManifest",
    "InvalidGrammar",
    "InvalidManifest",
    "InvalidPlan",
    "InvalidReceipt",
    "InvalidRequest",
    "InvalidResults",
    "InvalidStrategy",
    "InvalidWorkload",
    "Length",
    "LoadError",
    "LoadedDraft",
    "Manifest",
    "MissingPackage",
    "Needs",
    "OverBudget",
    "Piece",
    "PluginError",
    "PositionStats",
    "ProposalError",
    "Receipt",
    "Replay",
    "Result",
    "ResultsNotWritten",
    "Round",
    "RoundRecord",
    "SamplingPolicy",
    "SpecframeError",
    "StaleEpoch",
    "Stats",
    "Strategy",
    "Stream",
    "StreamNotFinished",
    "Target",
    "TargetError",
    "TargetFacts",
    "TargetSession",
    "TextGrammar",
    "Ticket",
    "TokenBytes",
    "TokenView",
    "TransformersTarget",
    "UnknownName",
    "UnsupportedModel",
    "Verification",
    "Views",
    "WorkerError",
    "WorkerRestarting",
    "__version__",
    "as_custom_generate",
    "hookimpl",
    "load",
    "load_draft",
    "load_target",
    "pure",
]
