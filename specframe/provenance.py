"""Where a run came from, and the receipt of what it did.

Knows manifests, plugins and records; nothing about how a round works. What is not needed for a receipt is not kept: neither
models nor drafters.
"""

from __future__ import annotations

import builtins
import hashlib
import re
import secrets
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import attrs

from specframe import errors
from specframe._version import __version__
from specframe.errors import GenerationError
from specframe.machine import hardware_class, runtime_versions
from specframe.manifest.collector import collect_all
from specframe.manifest.digest import canonical, digest, sampling_digest
from specframe.manifest.identity import Manifest, plain
from specframe.manifest.source import Source
from specframe.plugins import Plugins
from specframe.receipt import (
    MOST,
    NONE,
    PARTS,
    REGISTERED,
    UNKNOWN,
    Happening,
    Hashes,
    Memory,
    Receipt,
    Round,
    Seed,
    Share,
    Timing,
    round_check,
)
from specframe.records import Event, RoundRecord, summarise
from specframe.request import Request
from specframe.resolve import structured_options
from specframe.stats import finite
from specframe.strategy import Strategy

_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9 .,+()_-]")
_BUILD = re.compile(
    r"\+(?!(cpu|cu[0-9]+|rocm[0-9.]+|xpu)$).*"
)  # of a version that somebody built, and named as he liked


class Identities:
    """The manifests of a target and of its drafters' own models, each made when it is first asked for.

    ``make`` makes the target's, weights included; ``stated``: one that is known already, perhaps without weights;
    ``sources``: where drafters' models are.
    """

    def __init__(self, make: Callable[[], Manifest | None], stated: Manifest | None = None) -> None:
        self._make, self._target = make, stated
        self._drafts: dict[str, Manifest] | None = None
        self.sources: Mapping[str, Source] = {}

    @property
    def target(self) -> Manifest | None:
        """The target's manifest; None for a target that states none."""
        if self._target is None or self._target.weights.digest is None:
            self._target = self._make()
        return self._target

    @property
    def drafts(self) -> dict[str, Manifest]:
        """The manifests of the drafters' own models by drafter, with what weights they have."""
        if self._drafts is None:
            self._drafts = {who: collect_all(source) for who, source in self.sources.items()}
        return self._drafts


@attrs.frozen
class Trace:
    """What a generation did, whether it ended well or not.

    ``failure``: the code of what ended it, if it failed; ``held``: an account of memory, drafters by their number.
    """

    request: Request
    token_ids: tuple[int, ...]
    records: tuple[RoundRecord, ...]
    events: tuple[Event, ...]
    finish_reason: str
    failure: str | None
    exactness: str
    kernel: str
    length_policy: str
    held: Mapping[str, Any]


class Provenance:
    """An engine's part in its receipts.

    ``labels``: what a receipt calls each drafter: the name under which a plugin registered it, or ``given-1`` and so on for
    one that was made by hand, whose name is the caller's own.
    """

    def __init__(
        self,
        strategy: Strategy,
        plugins: Plugins,
        names: Collection[str],
        given: Collection[str],
        identities: Identities,
    ) -> None:
        self.identities = identities
        uses = {name: use for name, use in strategy.named_drafters.items() if use.use not in given}
        self.labels = {
            name: name if name in uses and REGISTERED.fullmatch(name) and name != "target" else f"given-{number}"
            for number, name in enumerate(names, start=1)
        }
        self._artifacts = dict.fromkeys(names, UNKNOWN)
        options: dict[str, Any] = {}
        for name, use in uses.items():
            entry = plugins.drafter(use.use)
            values = attrs.asdict(structured_options(use, plugins), recurse=False)
            if entry.needs.model is not None:
                values.pop(entry.needs.model)  # a name or a path; the artifact's digest says which model it was
            options[name] = [values, entry.needs.cheap]
            if entry.needs.model is not None or entry.needs.tokenizer == "none":
                self._artifacts[name] = NONE
        self._scheduler = [
            [strategy.mode, strategy.verifier, strategy.kernel, strategy.length.policy, strategy.length.max_tokens],
            [[self.labels[name], _canonical(options.get(name))] for name in names],
        ]

    def receipt(self, trace: Trace, nonce: str | None = None) -> Receipt:
        """Return the receipt of a run. ``nonce``: of the receipt that this one is to be compared with."""
        nonce = nonce or secrets.token_hex(16)
        request, identity = trace.request, self.identities.target
        records = [_relabelled(record, self.labels) for record in trace.records]
        stats = summarise(records)
        proposals = [record.num_accepted for record in records if record.num_proposed]
        shares = [share for record in records for share in record.drafters]
        key = _key(nonce, request)
        return Receipt(
            request_nonce=nonce,
            hashes=Hashes(
                **_target_hashes(identity),
                scheduler_policy=digest("scheduler-policy-v1", [trace.length_policy, *self._scheduler]),
                sampling_policy=sampling_digest(request.policy),
                grammar=_grammar(request),
                stops=digest("stops-v1", [nonce, *_stops(request)]),
                prompt=digest("prompt-v1", [nonce, request.prompt_ids]),
                output=digest("output-v1", [key, trace.token_ids]),
            ),
            drafters={self.labels[name]: self._artifact(name) for name in self.labels},
            hardware=_words(hardware_class()),
            runtime=_words({"specframe": __version__, **_public(runtime_versions()), **_products(trace.held)}),
            seed=Seed(request.seed, None, request.sample),
            num_prompt=len(request.prompt_ids),
            max_new_tokens=request.budget,
            finish_reason=trace.finish_reason,
            failure=trace.failure,
            exactness=trace.exactness,
            kernel=trace.kernel,
            length_policy=trace.length_policy,
            num_draft_calls=sum(share.limit > 0 for share in shares),
            num_proposals=len(proposals),
            accepted_counts=_histogram(proposals),
            rejection_positions=tuple(position.num_rejected for position in stats.positions),
            stats=attrs.evolve(stats, min_margin=finite(stats.min_margin)),
            timing=_timing(records),
            memory=self._memory(trace.held),
            events=tuple(
                Happening(event.round_id, self.labels.get(event.drafter), event.code) for event in trace.events
            ),
            rounds=tuple(_rounds(records, trace.token_ids, key)),
        )

    def _artifact(self, name: str) -> str:
        manifest = self.identities.drafts.get(name)
        if manifest is None:
            return self._artifacts[name]
        return manifest.weights.digest or manifest.digest

    def _memory(self, held: Mapping[str, Any]) -> Memory:
        """Return an account with drafters by label; parts with a plugin's own names are told as one."""
        labels = {"target": "target", **{str(index): label for index, label in enumerate(self.labels.values())}}
        parts: dict[str, int] = {}
        for told, size in held["logical"].items():
            who, _, part = told.partition(" ")
            name = f"{labels[who]} {part if part in PARTS else PARTS[-1]}"
            parts[name] = parts.get(name, 0) + size
        unknown = tuple(labels[who] for who in held["unknown"])
        return Memory(parts, held["deduplicated"], held["incremental"], held["process"], unknown)


def _products(held: Mapping[str, Any]) -> dict[str, str]:
    """Say so where a model had packed weights, whose products differ from torch's in their last digits."""
    is_packed = any(size for part, size in held["logical"].items() if part.endswith(" prepacked"))
    return {"products": "prepacked"} if is_packed else {}


def _key(nonce: str, request: Request) -> str:
    """Return the key of a run's checks: nobody can try out tokens, one after the other, who does not know the prompt."""
    return hashlib.sha256(canonical([nonce, request.prompt_ids, request.seed, request.sample])).hexdigest()


def _target_hashes(identity: Manifest | None) -> dict[str, str]:
    names = ("target", "target_weights", "tokenizer", "chat_template", "adapter_chain", "position_policy")
    if identity is None:
        return dict.fromkeys(names, UNKNOWN)
    adapters = identity.weights.adapters
    values = (
        identity.digest,
        identity.weights.digest or UNKNOWN,
        identity.tokenizer.digest if identity.tokenizer is not None else NONE,
        identity.template.digest or NONE,
        digest("adapter-chain-v1", adapters) if adapters else NONE,
        digest("position-policy-v1", plain(identity.positions)),
    )
    return dict(zip(names, values, strict=True))


def _grammar(request: Request) -> str:
    if request.constraint is not None:
        return request.constraint.digest
    return NONE if request.grammar is None else UNKNOWN


def _stops(request: Request) -> list[Any]:
    return [sorted(request.stop_ids), sorted(request.stop_strings.strings), request.criterion is not None]


def failure_code(error: BaseException) -> str:
    """Return the kind of a failure: the name of an exception of ours or of Python's; others have names of strangers."""
    if isinstance(error, GenerationError) and error.__cause__ is not None:
        error = error.__cause__
    name = type(error).__name__
    return name if type(error) in (vars(builtins).get(name), vars(errors).get(name)) else "Other"


def _relabelled(record: RoundRecord, labels: Mapping[str, str]) -> RoundRecord:
    """Return a record with drafters by label, and no seconds that a receipt cannot hold."""
    shares = (
        share._replace(name=labels[share.name], propose_s=_seconds(share.propose_s), seconds=_seconds(share.seconds))
        for share in record.drafters
    )
    phases: dict[str, Any] = {name: _seconds(getattr(record, name)) for name in record._fields if name.endswith("_s")}
    return record._replace(drafters=tuple(shares), **phases)


def _seconds(told: float) -> float:
    """Return seconds, none where the clock was set back or told no number."""
    return told if 0 <= told < MOST else 0.0


def _histogram(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(values.count(value) for value in range(max(values, default=-1) + 1))


def _timing(records: Sequence[RoundRecord]) -> Timing:
    prefill, first, warm = records[:1], records[1:2], sorted(record.seconds for record in records[2:])
    return Timing(
        prefill_s=sum(record.seconds for record in prefill),
        first_round_s=first[0].seconds if first else None,
        num_warm=len(warm),
        warm_mean_s=statistics.fmean(warm) if warm else None,
        warm_median_s=statistics.median(warm) if warm else None,
        warm_p90_s=warm[(9 * (len(warm) - 1) + 5) // 10] if warm else None,
    )


def _rounds(records: Iterable[RoundRecord], token_ids: Sequence[int], key: str) -> Iterable[Round]:
    start = 0
    for record in records:
        end = start + record.num_emitted
        yield Round(
            round_id=record.round_id,
            shares=tuple(
                Share(
                    drafter=share.name,
                    limit=share.limit,
                    num_proposed=share.num_proposed,
                    num_evaluated=share.num_evaluated,
                    num_accepted=share.num_accepted,
                    num_kept=share.num_kept,
                    seconds=share.seconds,
                )
                for share in record.drafters
            ),
            num_forwards=record.num_forwards,
            num_emitted=record.num_emitted,
            num_rounding=record.num_rounding,
            min_margin=finite(record.min_margin),
            draft_s=record.draft_s,
            forward_s=record.forward_s,
            sync_s=record.sync_s,
            decide_s=record.decide_s,
            commit_s=record.commit_s,
            emit_s=record.emit_s,
            check=round_check(key, start, token_ids[start:end]),
        )
        start = end


def _public(versions: Mapping[str, str]) -> dict[str, str]:
    """Return versions without the names of builds, but for those that torch publishes."""
    return {name: _BUILD.sub("", text) for name, text in versions.items()}


def _words(told: Mapping[str, str]) -> dict[str, str]:
    return {name: _NOT_IN_WORDS.sub("-", text)[:80] or UNKNOWN for name, text in told.items()}


def _canonical(value: Any) -> Any:
    """Return options as what a digest takes; of an object of a class that is nobody's business, the class."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_canonical(item) for item in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value) if isinstance(value, PurePath) else type(value).__qualname__
