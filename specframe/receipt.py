"""Receipts: what a generation did, without what it said.

The file format: JSON, checked as a whole when read. Knows nothing about engines. Every text in a receipt is of a closed form
(a digest, a code, a version, the name of a plugin's drafter), so that no prompt, output, token, path, user or host can stand
in one. Source: the report's "Privacy-safe receipt".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from specframe.errors import InvalidReceipt, InvalidStrategy
from specframe.files import save
from specframe.manifest.digest import digest, problem
from specframe.records import EVENT_CODES, DrafterStats, Stats
from specframe.stats import plain as plain_stats
from specframe.stats import without_rates
from specframe.strategy import structure

VERSION = 1
NONE, UNKNOWN, WITHHELD = "none", "unknown", "withheld"
"""In place of a digest: there is no such thing; nobody told; left out of a coarse receipt."""

FINISH_REASONS = ("stop", "length", "cancelled", "deadline", "failed")
EXACTNESS = ("bitwise", "token-exact", "distribution-exact")
PARTS = ("weights", "prepacked", "cache", "other")
"""What a receipt tells of the parts that a target or drafter holds."""
_CHECK_DIGITS = 16
MOST = 2**63
"""What every number in a receipt is below."""
_REMAKE = "make another one with 'specframe generate --receipt'"
# What the caller wrote; a digest of it confirms a guess, so a coarse receipt holds none.
_OF_THE_CALLER = ("scheduler_policy", "sampling_policy", "grammar", "stops", "prompt", "output")

REGISTERED = re.compile(r"[a-z][a-z0-9_]{0,63}(#[0-9]{1,4})?")
LABEL = re.compile(rf"{REGISTERED.pattern}|given-[0-9]{{1,4}}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_CHECK = re.compile(rf"[0-9a-f]{{{_CHECK_DIGITS}}}")
_KERNEL = re.compile(r"single|block:[0-9]{1,4}")
_LENGTHS = re.compile(r"[a-z]{1,32}(/[0-9]{1,4})?")
_FAILURE = re.compile(r"[A-Za-z]{1,64}")
_WORD = re.compile(r"[A-Za-z0-9 .,+()_-]{1,80}")  # no slash: no path


def _matches(pattern: re.Pattern[str]) -> Any:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        for text in value if isinstance(value, tuple) else (value,):
            if text is not None and not pattern.fullmatch(text):
                raise ValueError(f"'{attribute.name}' must be of the form {pattern.pattern} (got {text!r})")

    return check


def _one_of(allowed: tuple[str, ...]) -> Any:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: str) -> None:
        if value not in allowed:
            raise ValueError(f"'{attribute.name}' must be one of {', '.join(allowed)} (got {value!r})")

    return check


def _table_of(keys: re.Pattern[str], values: Any) -> Any:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: Mapping[str, Any]) -> None:
        for key, item in value.items():
            if not keys.fullmatch(key):
                raise ValueError(f"'{attribute.name}' must have keys of the form {keys.pattern} (got {key!r})")
            values(instance, attribute, item)

    return check


def _numbers(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that a number, or each of a tuple, is one that a run can have."""
    for number in value if isinstance(value, tuple) else (value,):
        if number is not None and not 0 <= number < MOST:
            raise ValueError(f"'{attribute.name}' must be in [0, 2**63) (got {number!r})")


def _hash(instance: Any, attribute: attrs.Attribute[Any], value: str) -> None:
    if value not in (NONE, UNKNOWN, WITHHELD) and (told := problem(value)) is not None:
        raise ValueError(f"'{attribute.name}' {told}")


@attrs.frozen
class Hashes:
    """Digests of what decoded and of what was asked, each with the scheme that says what it covers, or a word for none.

    ``target``: the whole manifest; ``stops``, ``prompt`` and ``output`` are salted with the nonce, and ``output`` can be
    checked only by who knows the prompt and the seed.
    """

    target: str = attrs.field(validator=_hash)
    target_weights: str = attrs.field(validator=_hash)
    tokenizer: str = attrs.field(validator=_hash)
    chat_template: str = attrs.field(validator=_hash)
    adapter_chain: str = attrs.field(validator=_hash)
    position_policy: str = attrs.field(validator=_hash)
    scheduler_policy: str = attrs.field(validator=_hash)
    sampling_policy: str = attrs.field(validator=_hash)
    grammar: str = attrs.field(validator=_hash)
    stops: str = attrs.field(validator=_hash)
    prompt: str = attrs.field(validator=_hash)
    output: str = attrs.field(validator=_hash)


@attrs.frozen
class Seed:
    """What repeats the draws: the seed itself, in a coarse receipt a commitment to it; neither for a greedy run.

    ``sample``: which of the ``n`` generations of one request this is.
    """

    value: int | None = None
    commitment: str | None = attrs.field(default=None)
    sample: int = attrs.field(default=0, validator=_numbers)

    def __attrs_post_init__(self) -> None:
        if self.value is not None and not 0 <= self.value < 2**64:
            raise ValueError(f"'value' must be in [0, 2**64) (got {self.value})")
        if self.commitment is not None and (told := problem(self.commitment)) is not None:
            raise ValueError(f"'commitment' {told}")


@attrs.frozen
class Timing:
    """Seconds of rounds. Cold: the prefill, and the first round behind it, which opens drafters; warm: the others."""

    prefill_s: float = attrs.field(validator=_numbers)
    first_round_s: float | None = attrs.field(validator=_numbers)
    num_warm: int = attrs.field(validator=_numbers)
    warm_mean_s: float | None = attrs.field(validator=_numbers)
    warm_median_s: float | None = attrs.field(validator=_numbers)
    warm_p90_s: float | None = attrs.field(validator=_numbers)


@attrs.frozen
class Memory:
    """Bytes at the end of the generation, when its caches are largest.

    ``parts``: logical bytes, such as of ``target weights``; ``deduplicated``: storages counted once; ``incremental``: what
    drafters add; ``process``: the most that the process was ever resident with; ``unknown``: who does not tell.
    """

    parts: Mapping[str, int] = attrs.field(
        validator=_table_of(re.compile(rf"({LABEL.pattern}) ({'|'.join(PARTS)})"), _numbers)
    )
    deduplicated: int = attrs.field(validator=_numbers)
    incremental: int = attrs.field(validator=_numbers)
    process: int = attrs.field(validator=_numbers)
    unknown: tuple[str, ...] = attrs.field(validator=_matches(LABEL))


@attrs.frozen
class Share:
    """One drafter's part in a round: how many tokens it was allowed (k), and what became of those that it proposed."""

    drafter: str = attrs.field(validator=_matches(LABEL))
    limit: int = attrs.field(validator=_numbers)
    num_proposed: int = attrs.field(validator=_numbers)
    num_evaluated: int = attrs.field(validator=_numbers)
    num_accepted: int = attrs.field(validator=_numbers)
    num_kept: int = attrs.field(validator=_numbers)
    seconds: float = attrs.field(validator=_numbers)


@attrs.frozen
class Round:
    """One round; round 0 is the prefill. ``check``: of its tokens, for who can repeat the run; see ``Hashes``."""

    round_id: int = attrs.field(validator=_numbers)
    shares: tuple[Share, ...]
    num_forwards: int = attrs.field(validator=_numbers)
    num_emitted: int = attrs.field(validator=_numbers)
    num_rounding: int = attrs.field(validator=_numbers)
    min_margin: float | None = attrs.field(validator=_numbers)
    draft_s: float = attrs.field(validator=_numbers)
    forward_s: float = attrs.field(validator=_numbers)
    decide_s: float = attrs.field(validator=_numbers)
    commit_s: float = attrs.field(validator=_numbers)
    check: str = attrs.field(validator=_matches(_CHECK))


@attrs.frozen
class Happening:
    """An event: in which round, with which drafter (None: with none), and its code."""

    round_id: int = attrs.field(validator=_numbers)
    drafter: str | None = attrs.field(validator=_matches(LABEL))
    code: str = attrs.field(validator=_one_of(EVENT_CODES))


@attrs.frozen(kw_only=True)
class Receipt:
    """What one generation did.

    ``drafters``: the digest of each one's own model, ``none`` for one without; ``num_draft_calls``: how often a drafter was
    asked; ``num_proposals``: rounds in which anything was proposed; ``accepted_counts[i]``: in how many of them i tokens were
    accepted; ``rejection_positions[i]``: how many broke at token i; ``failure``: the exception that ended the run, if one
    did. A coarse receipt has no rounds.
    """

    receipt_version: int = attrs.field(default=VERSION, validator=_numbers)
    is_coarse: bool = False
    request_nonce: str = attrs.field(validator=_matches(_NONCE))
    hashes: Hashes
    drafters: Mapping[str, str] = attrs.field(validator=_table_of(LABEL, _hash))
    hardware: Mapping[str, str] = attrs.field(validator=_table_of(_WORD, _matches(_WORD)))
    runtime: Mapping[str, str] = attrs.field(validator=_table_of(_WORD, _matches(_WORD)))
    seed: Seed
    num_prompt: int = attrs.field(validator=_numbers)
    max_new_tokens: int = attrs.field(validator=_numbers)
    finish_reason: str = attrs.field(validator=_one_of(FINISH_REASONS))
    failure: str | None = attrs.field(validator=_matches(_FAILURE))
    exactness: str = attrs.field(validator=_one_of(EXACTNESS))
    kernel: str = attrs.field(validator=_matches(_KERNEL))
    length_policy: str = attrs.field(validator=_matches(_LENGTHS))
    num_draft_calls: int = attrs.field(validator=_numbers)
    num_proposals: int = attrs.field(validator=_numbers)
    accepted_counts: tuple[int, ...] = attrs.field(validator=_numbers)
    rejection_positions: tuple[int, ...] = attrs.field(validator=_numbers)
    stats: Stats = attrs.field()
    timing: Timing
    memory: Memory
    events: tuple[Happening, ...]
    rounds: tuple[Round, ...]

    @stats.validator
    def _check_stats(self, attribute: attrs.Attribute[Any], value: Stats) -> None:
        drafters = value.drafters.values()
        positions = [*value.positions, *(position for drafter in drafters for position in drafter.positions)]
        counts = [value.num_rounds, value.num_target_calls, value.num_tokens, value.num_rounding, value.first_token_s]
        counts += [number for drafter in drafters for number in _counts(drafter)]
        counts += [number for position in positions for number in attrs.astuple(position)]
        _numbers(self, attribute, (*counts, value.min_margin, *value.seconds.values()))
        _matches(LABEL)(self, attribute, (*value.drafters, *value.seconds))

    @property
    def digest(self) -> str:
        """The digest of all fields; a file states it, so that one that was changed is noticed. It is no signature."""
        return _digest(_plain(self))

    @property
    def ended_early(self) -> bool:
        """Whether somebody or the clock ended the run before its text ended."""
        return self.finish_reason in ("cancelled", "deadline")

    def coarse(self) -> Receipt:
        """Return the variant for sharing, the same at every call.

        It has no rounds, no digest of what the caller wrote, a commitment in place of the seed, classes of hardware, versions
        to their second part, lengths to the next power of two, and seconds and bytes to two digits.
        """
        if self.is_coarse:
            return self
        withheld = {name: WITHHELD for name in _OF_THE_CALLER if getattr(self.hashes, name) != NONE}
        value = self.seed.value
        commitment = digest("seed-v1", [self.request_nonce, value]) if value is not None else None
        return attrs.evolve(
            self,
            is_coarse=True,
            hashes=attrs.evolve(self.hashes, **withheld),
            seed=Seed(None, commitment, self.seed.sample),
            hardware=_coarse_hardware(self.hardware),
            runtime={name: ".".join(text.split(".")[:2]) for name, text in self.runtime.items()},
            num_prompt=_next_power(self.num_prompt),
            max_new_tokens=_next_power(self.max_new_tokens),
            stats=_coarse_stats(self.stats),
            timing=Timing(**{name: _rounded(number) for name, number in attrs.asdict(self.timing).items()}),
            memory=attrs.evolve(
                self.memory,
                parts={part: _rounded(number) for part, number in self.memory.parts.items()},
                **{name: _rounded(getattr(self.memory, name)) for name in ("deduplicated", "incremental", "process")},
            ),
            rounds=(),
        )

    def to_json(self) -> str:
        """Return the receipt as a file holds it: JSON with a line for each round."""
        data = _plain(self)
        rounds = data.pop("rounds")
        head = json.dumps(_stated(data, self.digest), indent=2)
        lines = ",".join(f"\n    {json.dumps(line)}" for line in rounds)
        return f'{head.removesuffix("}").rstrip()},\n  "rounds": [{lines}\n  ]\n}}\n'

    @classmethod
    def from_json(cls, text: str, where: str = "receipt") -> Receipt:
        """Return the receipt that a text holds.

        Raises ``InvalidReceipt``, naming ``where``, for a text that is not whole, was changed, or is of a later version.
        """
        try:
            data = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InvalidReceipt(f"{where} is not whole JSON: {error}; {_REMAKE}") from error
        return from_plain(data, where)

    @classmethod
    def read(cls, path: str | Path) -> Receipt:
        """Read a receipt's file. Raises ``InvalidReceipt`` naming the file."""
        path = Path(path)
        where = f"receipt '{path.name}'"
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InvalidReceipt(f"{where} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InvalidReceipt(f"{where} is not a text file: {error}") from error
        return cls.from_json(text, where)

    def write(self, path: str | Path) -> None:
        """Write a file under its name once it is whole. Raises ``InvalidRequest`` where it cannot be written."""
        save(Path(path), self.to_json(), field="receipt")


def from_plain(data: Any, where: str) -> Receipt:
    """Return the receipt that plain data holds; raises like ``Receipt.from_json``."""
    version = data.get("receipt_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise InvalidReceipt(f"{where} is not a receipt: it has no 'receipt_version'; {_REMAKE}")
    if version != VERSION:
        way_out = "upgrade specframe" if version > VERSION else _REMAKE
        raise InvalidReceipt(f"{where} has version {version}; this specframe reads version {VERSION}: {way_out}")
    stated, data = data.get("digest"), {key: value for key, value in data.items() if key != "digest"}
    try:
        is_whole = stated == _digest(data)
    except RecursionError:
        is_whole = False
    if not is_whole:
        raise InvalidReceipt(f"{where} was changed or cut off after it was made: its digest is another; {_REMAKE}")
    try:
        return structure({**data, "stats": without_rates(data.get("stats"))}, Receipt, where)
    except InvalidStrategy as error:
        raise InvalidReceipt(f"{error}; {_REMAKE}") from error


def round_check(key: str, start: int, token_ids: Iterable[int]) -> str:
    """Return the check of a round's tokens; ``key`` is a secret of who knows prompt and seed, ``start`` their place."""
    return digest("round-v1", [key, start, list(token_ids)])[-_CHECK_DIGITS:]


def _plain(receipt: Receipt) -> dict[str, Any]:
    return {**attrs.asdict(receipt), "stats": plain_stats(receipt.stats)}


def _digest(data: Any) -> str:
    return digest("receipt-v1", data)


def _stated(data: dict[str, Any], stated: str) -> dict[str, Any]:
    """Return plain data with its digest behind the version."""
    version = data.pop("receipt_version")
    return {"receipt_version": version, "digest": stated, **data}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _counts(drafter: DrafterStats) -> tuple[float, ...]:
    return (drafter.num_proposed, drafter.num_evaluated, drafter.num_accepted, drafter.seconds)


def _coarse_hardware(hardware: Mapping[str, str]) -> dict[str, str]:
    """Return the class of a machine: kinds, and sizes to the next power of two."""
    told = {name: hardware.get(name, "") for name in ("cores", "memory_gib")}
    sizes = {name: str(_next_power(int(size))) for name, size in told.items() if re.fullmatch("[0-9]{1,9}", size)}
    kinds = {name: hardware[name] for name in ("architecture", "system") if name in hardware}
    accelerator = NONE if hardware.get("accelerator", NONE) == NONE else "present"
    return {**kinds, **sizes, "accelerator": accelerator}


def _coarse_stats(stats: Stats) -> Stats:
    drafters = {
        name: attrs.evolve(drafter, seconds=_rounded(drafter.seconds)) for name, drafter in stats.drafters.items()
    }
    return attrs.evolve(
        stats,
        drafters=drafters,
        min_margin=_rounded(stats.min_margin),
        seconds={name: _rounded(number) for name, number in stats.seconds.items()},
        first_token_s=_rounded(stats.first_token_s),
    )


def _rounded(number: Any) -> Any:
    """Return a number to two significant digits."""
    if not number:
        return number
    rounded = float(f"{number:.1e}")
    return rounded if isinstance(number, float) else int(rounded)


def _next_power(number: int) -> int:
    return 1 << (number - 1).bit_length() if number > 0 else 0
