"""The kinds behind the cases C, E1, E3, G1, H1, J3, K1 and M1, whichever way a request comes in and whoever proposes.

Every strategy, kernel and entry point must end an output where plain decoding does, with the same ids and the same text. The
logits are wider than the tokenizer, and the drafters are the ones that come with specframe, one of them in a worker.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from drafts import near_model
from models import tiny_model
from transformers import LogitsProcessor

from specframe import DrafterUse, Engine, Length, Strategy, TransformersTarget, as_custom_generate
from specframe.testing import byte_tokenizer

TOKENIZER = byte_tokenizer()
WIDTH = len(TOKENIZER) + 4
CONTEXT = 40
PROMPT = [*b"abcdabcdabcd"]
EOS = TOKENIZER.eos_token_id
LOOKUP = {"min_ngram": 1, "length": "fixed"}
LENGTH = Length("fixed", 5)
KERNELS = ("single", "block:4")


def cycling(make, **options):
    """Return a model whose text soon repeats itself, so that most of what is copied from it is right."""
    model = make(vocab_size=WIDTH, max_position_embeddings=CONTEXT, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "self_attn" in name or "mlp" in name:
                parameter.mul_(0.3)
        model.get_output_embeddings().weight *= 3
        model.get_output_embeddings().weight[97:123] *= 2  # letters, mostly
    return model


class Wayward(LogitsProcessor):
    """Count the calls, and let them decide: not to be run for rows that never happen."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores.roll(self.num_calls % 3, -1)


@pytest.fixture(scope="module")
def model():
    return cycling(tiny_model)


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("draft")
    cycling(near_model).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def drafters(name, draft_folder):
    lookup, draft = DrafterUse("prompt_lookup", LOOKUP), DrafterUse("draft_model", {"model": str(draft_folder)})
    in_worker = DrafterUse("prompt_lookup", LOOKUP, worker=True, budget_ms=60_000)
    grammar = DrafterUse("grammar")
    return {
        "lookup": (lookup,),
        "draft": (draft,),
        "worker": (in_worker,),
        "grammar, lookup, draft": (grammar, DrafterUse("prompt_lookup", {**LOOKUP, "max_tokens": 2}), draft),
    }[name]


STRATEGIES = ("lookup", "draft", "worker", "grammar, lookup, draft")


class Ways:
    """The ways into one strategy on a model."""

    def __init__(self, model, strategy):
        self.model, self.strategy = model, strategy
        self.engine = Engine(TransformersTarget(model, TOKENIZER), strategy=strategy, debug=True)
        self.function = as_custom_generate(strategy)

    def custom_generate(self, *, stop=None, stop_ids=(), regex=None, seed=None, processors=(), **arguments):
        """Return what existing code gets, its arguments spelled as ``generate`` wants them."""
        if seed is not None:
            arguments |= {"do_sample": True, "top_k": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a budget beyond the context
            inputs = torch.tensor([PROMPT])
            ids = self.model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                eos_token_id=list(stop_ids) or None,
                logits_processor=list(processors),
                custom_generate=self.function,
                spec_tokenizer=TOKENIZER,
                spec_seed=seed,
                spec_stop=stop,
                spec_regex=regex,
                **arguments,
            )
        return tuple(ids[0, len(PROMPT) :].tolist())

    def close(self):
        self.engine.close()
        if self.function._engine is not None:
            self.function._engine.close()


@pytest.fixture(scope="module")
def ways(model, draft_folder, tmp_path_factory):
    made = {}

    def of(name, kernel, verifier="coupled"):
        if (name, kernel, verifier) not in made:
            uses = drafters(name, draft_folder) if name else ()
            strategy = Strategy(drafters=uses, length=LENGTH, kernel=kernel, verifier=verifier)
            made[name, kernel, verifier] = Ways(model, strategy)
        return made[name, kernel, verifier]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield of
        for one in made.values():
            one.close()


ENDS = {
    "an id that is said": {"max_new_tokens": 20, "stop_ids": "said"},
    "a budget": {"max_new_tokens": 7},
    "a budget of 1": {"max_new_tokens": 1},
    "a budget of 0": {"max_new_tokens": 0},
    "the context, without an EOS": {"max_new_tokens": 100, "stop_ids": []},
    "a stop string": {"max_new_tokens": 20, "stop": "said"},
    "under penalties": {"max_new_tokens": 12, "repetition_penalty": 0.7, "no_repeat_ngram_size": 2},
    "under a processor with state": {"max_new_tokens": 8, "processors": Wayward},
    "a grammar": {"max_new_tokens": 12, "regex": "[a-f]{3,5}(xyz)?", "stop_ids": [EOS]},
}
SAMPLINGS = {"greedy": {}, "coupled": {"temperature": 0.8, "seed": 5}}


def call_of(end, sampling, plain):
    """Return the arguments of a call; what the text must say is taken from what plain decoding says."""
    call = {"stop_ids": [], **ENDS[end], **sampling}
    if call["stop_ids"] == "said":
        said = plain.generate(PROMPT, max_new_tokens=20, stop_ids=[], **sampling).token_ids
        call["stop_ids"] = [said[6], next(token for token in range(256, WIDTH) if token not in said)]
    if call.get("stop") == "said":
        text = plain.generate(PROMPT, max_new_tokens=20, stop_ids=[], **sampling).text
        call["stop"] = [text[5:8], "\x00never"]
    return call


def arguments_of(call):
    """Return the arguments with a processor of the call's own."""
    return {**call, "processors": [call["processors"]()]} if "processors" in call else call


def told(result):
    return result.token_ids, result.text, result.finish_reason, result.stop_match


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_way_in_ends_where_plain_decoding_does(name, kernel, end, sampling, ways):
    """An end, a mask or a penalty that holds in ``generate`` with one drafter, and is lost on the way from elsewhere."""
    plain, way = ways("", kernel).engine, ways(name, kernel)
    call = call_of(end, sampling, plain)
    expected = plain.generate(PROMPT, log_probs=True, **arguments_of(call))
    found = way.engine.generate(PROMPT, **arguments_of(call))
    assert told(found) == told(expected)
    assert found.kernel == kernel
    stream = way.engine.stream(PROMPT, log_probs=True, **arguments_of(call))
    pieces = list(stream)
    assert told(stream.result) == told(expected)
    assert stream.result.log_probs == pytest.approx(expected.log_probs, abs=1e-10)
    assert tuple(token for piece in pieces for token in piece.token_ids) == expected.token_ids
    assert "".join(piece.text for piece in pieces) == expected.text
    several = way.engine.generate(PROMPT, n=2, **arguments_of(call))
    assert list(map(told, several)) == list(map(told, plain.generate(PROMPT, n=2, **arguments_of(call))))
    if call["max_new_tokens"]:  # the library itself refuses 0
        assert way.custom_generate(**arguments_of(call)) == expected.token_ids
    if end.startswith("the context"):
        assert len(expected.token_ids) == CONTEXT - len(PROMPT) + 1
        assert found.stats.num_accepted > 5
    if end == "under a processor with state":
        assert found.stats.num_proposed == 0
    assert all(event.code in ("context-limit", "no-speculation", "drafter-exhausted") for event in found.events)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("name", "kernel"), [*((name, "single") for name in STRATEGIES), ("draft", "block:4")])
def test_every_way_in_keeps_the_ends_of_a_residual_text(name, kernel, end, ways):
    """A residual text is another one than plain decoding's; it ends by the same rules, and one seed gives one text."""
    way = ways(name, kernel, "residual")
    for seed in range(2):
        sampling = {"temperature": 0.8, "seed": seed}
        call = call_of(end, sampling, way.engine)
        found = way.engine.generate(PROMPT, **arguments_of(call))
        stream = way.engine.stream(PROMPT, **arguments_of(call))
        text = "".join(piece.text for piece in stream)
        assert told(stream.result) == told(found)
        assert text == found.text
        assert told(way.engine.generate(PROMPT, n=2, **arguments_of(call))[0]) == told(found)
        if call["max_new_tokens"]:
            assert way.custom_generate(**arguments_of(call)) == found.token_ids
        stops, budget = call.get("stop", []), min(call["max_new_tokens"], CONTEXT - len(PROMPT) + 1)
        assert not {*found.token_ids[:-1]} & {*call["stop_ids"]}
        assert not any(stop in found.text for stop in stops)
        if found.finish_reason == "length":
            assert len(found.token_ids) == budget
            assert not {*found.token_ids} & {*call["stop_ids"]}
        else:
            assert found.stop_match in (*stops, *call["stop_ids"])
            assert len(found.token_ids) <= budget


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_a_request_leaves_in_a_drafter_changes_nothing_later(name, ways, model):
    """A draft's cache, an index or a worker's session of the request before: other proposals, or none any more."""
    used = ways(name, "single")
    fresh = Ways(model, used.strategy)
    try:
        for call in (
            {"stop_ids": [], "max_new_tokens": 20},
            {"stop_ids": [], "max_new_tokens": 20, "temperature": 0.8, "seed": 42},
            {"stop_ids": [EOS], "max_new_tokens": 20, "regex": "[a-d]{4,8}"},
        ):
            left = used.engine.stream(PROMPT[:9], **{**call, "max_new_tokens": 15})
            for _ in itertools.islice(left, 2):
                pass
            left.close()
            found, expected = (way.engine.generate(PROMPT, **call) for way in (used, fresh))
            assert told(found) == told(expected)
            counts = [
                [[(share.name, share.num_proposed, share.num_accepted) for share in r.drafters] for r in result.records]
                for result in (found, expected)
            ]
            assert counts[0] == counts[1]
            fresh.engine.reset()
    finally:
        fresh.close()
