"""One generation's request: what a caller passes, checked before anything runs.

Knows the target's facts; nothing about engines and rounds, and no model library: a slip in a value is told before one loads.
"""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import attrs

from specframe.cancel import CancelToken
from specframe.constraint import Constraint, in_force, is_grammar, read_constraint
from specframe.errors import InvalidRequest
from specframe.grammar import Grammar
from specframe.prompt import Prompt, encode
from specframe.proposal import TargetFacts
from specframe.random import fresh_seed
from specframe.sampling import SamplingPolicy
from specframe.stop import StopStrings, as_stop_strings

if TYPE_CHECKING:
    import torch

DEFAULT_MAX_NEW_TOKENS = 256
_MOST = 2**63 - 1  # tokens, or seconds; more is the same as that
Compile = Callable[[Constraint, frozenset[int]], Grammar]
"""Returns the grammar of a constraint under a request's stop ids."""

_POLICY_FIELDS = frozenset(field.name for field in attrs.fields(SamplingPolicy))


class Arguments(TypedDict, total=False):
    """What ``generate`` and ``stream`` take beside the prompt; every field of ``SamplingPolicy`` stands here by name.

    ``max_new_tokens``: the budget, 256 by default; ``stop``: strings that end the output; ``stop_ids``: ids that do,
    instead of the model's own; ``seed``: for sampling, drawn and recorded if not given; ``log_probs``: whether the result
    has the log-probability of each emitted token; ``regex``: a pattern to which the whole output is held, at most one of
    these five; ``json_schema``: a schema, as an object or as its JSON text; ``choice``: the texts that it may be; ``lark``: the
    source of a Lark grammar; ``grammar``: a ``Grammar`` made by hand; ``grammar_tokenization``: ``any`` (every spelling of the
    text) or ``canonical`` (forced text is spelled by its canonical tokens alone); ``grammar_after``: a text or an id before
    which the output is free; ``policy``: a ``SamplingPolicy``, instead of its fields one by one; ``criterion``: called with
    the ids so far, ``[1, length]``, after each emitted token, and ends the output by returning True; ``keep_prefix``: whether
    later requests may reuse the target's cache, True by default; ``cancel``: a ``CancelToken`` that ends the call, from
    anywhere; ``deadline_s``: seconds after which it ends, waiting for its turn included. What was emitted until then is the
    result.
    """

    max_new_tokens: int
    stop: str | Sequence[str] | None
    stop_ids: Sequence[int] | frozenset[int] | None
    seed: int | None
    log_probs: bool
    regex: str | None
    json_schema: Mapping[str, Any] | bool | str | None
    choice: Sequence[str] | None
    lark: str | None
    grammar: Grammar | None
    grammar_tokenization: str
    grammar_after: str | int | None
    policy: SamplingPolicy | None
    criterion: Callable[[torch.Tensor], bool] | None
    keep_prefix: bool
    cancel: CancelToken | None
    deadline_s: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    no_repeat_ngram_size: int | None
    logit_bias: Mapping[int, float] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    suppress_tokens: Sequence[int] | None
    min_new_tokens: int | None
    processors: Sequence[Any] | None


@attrs.frozen
class Request:
    """A checked request.

    ``seed`` is None when greedy; ``sample`` numbers generations of a prompt; ``grammar`` is the one in force, ``constraint``
    what it was compiled from, or None; ``keep_prefix``: whether the target's cache may serve later requests; ``cancel`` and
    ``deadline_s``: what may end it early.
    """

    prompt_ids: tuple[int, ...]
    budget: int
    policy: SamplingPolicy
    stop_ids: frozenset[int]
    stop_strings: StopStrings
    seed: int | None = None
    sample: int = 0
    grammar: Grammar | None = None
    constraint: Constraint | None = None
    log_probs: bool = False
    keep_prefix: bool = True
    criterion: Callable[[torch.Tensor], bool] | None = None
    cancel: CancelToken | None = None
    deadline_s: float | None = None


def read_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a ``Request`` that need no target. Raises ``InvalidRequest`` for what none could honour."""
    _check_names(arguments)
    policy = _policy(arguments)
    criterion = arguments.get("criterion")
    if criterion is not None and not callable(criterion):
        raise InvalidRequest("criterion", "must be a function of the ids so far", criterion)
    seed = arguments.get("seed")
    seed = fresh_seed() if seed is None else integer("seed", seed, 0, 2**64 - 1)
    return {
        "budget": min(integer("max_new_tokens", arguments.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS), 0), _MOST),
        "policy": policy,
        "stop_strings": as_stop_strings(arguments.get("stop")),
        "seed": None if policy.is_greedy else seed,
        "log_probs": _flag("log_probs", arguments.get("log_probs", False)),
        "keep_prefix": _flag("keep_prefix", arguments.get("keep_prefix", True)),
        "criterion": criterion,
        "cancel": _cancel(arguments.get("cancel")),
        "deadline_s": _seconds("deadline_s", arguments.get("deadline_s")),
    }


def make_request(prompt: Prompt, arguments: Mapping[str, Any], facts: TargetFacts, compile: Compile) -> Request:
    """Return the checked request, its grammar compiled. Raises ``InvalidRequest``, and what ``compile`` raises."""
    fields = read_arguments(arguments)
    fields["policy"].check_ids(facts.vocab_size)
    strings = fields["stop_strings"].strings
    if strings and facts.tokenizer is None:
        raise InvalidRequest("stop", "needs a target with a tokenizer", strings, "use stop_ids")
    constraint = read_constraint(arguments, facts)
    stop_ids = _stop_ids(arguments.get("stop_ids"), facts)
    return Request(
        prompt_ids=encode(prompt, facts),
        stop_ids=stop_ids,
        grammar=compile(constraint, stop_ids) if constraint is not None else _grammar(arguments, facts, stop_ids),
        constraint=constraint,
        **fields,
    )


def _grammar(arguments: Mapping[str, Any], facts: TargetFacts, stop_ids: frozenset[int]) -> Grammar | None:
    grammar = arguments.get("grammar")
    if grammar is None:
        return None
    if not is_grammar(grammar):
        raise InvalidRequest("grammar", "must be a Grammar (start, mask, advance, is_final)", grammar)
    return in_force(
        grammar,
        arguments.get("grammar_tokenization", "any"),
        arguments.get("grammar_after"),
        attrs.evolve(facts, stop_ids=stop_ids),
    )


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return an integer argument, a numpy one too. Raises ``InvalidRequest`` outside ``[low, high]``."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        rule = f"must be an integer >= {low}" if high is None else f"must be an integer in [{low}, {high}]"
        raise InvalidRequest(name, rule, value)
    return int(value)


_HINTS = {
    "do_sample": "sampling is on where a temperature is given; ",
    "n": "a stream is one generation, generate() makes several; ",
    "max_length": "the budget is max_new_tokens; ",
    "max_time": "the time is deadline_s; ",
    "timeout": "the time is deadline_s; ",
}


def _check_names(arguments: Mapping[str, Any]) -> None:
    known = Arguments.__annotations__.keys()
    for name in sorted(arguments.keys() - known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = _HINTS.get(name) or (f"did you mean '{close[0]}'? " if close else "")
        raise InvalidRequest(
            name, "is not an argument here", arguments[name], f"{hint}known: {', '.join(sorted(known))}"
        )


def _policy(arguments: Mapping[str, Any]) -> SamplingPolicy:
    fields = {name: value for name, value in arguments.items() if name in _POLICY_FIELDS}
    policy = arguments.get("policy")
    if policy is None:
        return SamplingPolicy(**fields)
    if not isinstance(policy, SamplingPolicy):
        raise InvalidRequest("policy", "must be a SamplingPolicy", policy)
    if fields:
        raise InvalidRequest("policy", "excludes single sampling fields", sorted(fields), "use one of the two")
    return policy


def _stop_ids(value: Any, facts: TargetFacts) -> frozenset[int]:
    if value is None:
        return facts.stop_ids
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidRequest("stop_ids", "must be a list of ids", value)
    return frozenset(integer("stop_ids", token, 0, facts.vocab_size - 1) for token in value)


def _cancel(value: Any) -> CancelToken | None:
    if value is not None and not isinstance(value, CancelToken):
        raise InvalidRequest("cancel", "must be a specframe.CancelToken", value)
    return value


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not value >= 0:
        raise InvalidRequest(name, "must be a number of seconds >= 0", value)
    return float(min(value, _MOST))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(name, "must be True or False", value)
    return value
