"""The compatibility rules, as data: what is compared, for which kinds of drafter, how bad a difference is, and the way out.

A rule compares a field of the target with one of the drafter, by dotted path; a path of a table stands for all of its
fields. ``report.py`` runs them in this order, so the first refusal is the one that explains the others.
"""

from __future__ import annotations

from typing import Literal

import attrs

from specframe.layout import OUTPUT_MAP

Severity = Literal["refuse", "slower", "note"]
Comparison = Literal[
    "equal", "alike", "common", "differs", "known", "has", "absent", "lacks", "at_least", "at_most", "below", "true"
]

KINDS = {
    "none": "needs no model of its own: lookup, grammars",
    "same": "a draft model with the target's own tokenizer",
    "reduced": "a draft model with the target's tokenizer and fewer output columns, mapped to target ids",
    "features": "heads on the target's hidden states",
    "bytes": "a draft model with another tokenizer",
}
_READS_IDS = frozenset(("same", "reduced"))
_MODELS = frozenset(("same", "reduced", "bytes"))
_ALL = frozenset(KINDS)


@attrs.frozen
class Rule:
    """One check.

    ``field``: of the target; ``other``: of the drafter, by default the same; ``compare``: how they are compared:

    - ``equal``: both are equal, also where neither is known; ``alike``: equal where both are known; ``common``: the fields
      of a table that both have are equal; ``differs``: not equal;
    - ``known``: both are known; ``has``: the drafter's is known if the target's is; ``absent``: the target's is not known;
      ``lacks``: the drafter's is not known;
    - ``at_least``, ``at_most``, ``below``: the drafter's number against the target's, where both are known;
    - ``true``: the drafter's is not false.

    ``kinds``: of drafter for which it matters. ``reason`` and ``remedy`` are one sentence each; ``detail`` names what else
    is told of a difference.
    """

    name: str
    field: str
    severity: Severity
    kinds: frozenset[str]
    reason: str
    remedy: str
    compare: Comparison = "equal"
    other: str = attrs.field(default=attrs.Factory(lambda self: self.field, takes_self=True))
    detail: Literal["", "first_id"] = ""


RULES = (
    Rule(
        "tokenizer-known",
        "tokenizer.digest",
        "refuse",
        _MODELS,
        "Without both tokenizers nobody can tell whether an id means the same to both models.",
        "save the tokenizer beside each model",
        compare="known",
    ),
    Rule(
        "vocabulary",
        "tokenizer.vocabulary",
        "refuse",
        _READS_IDS,
        "An id stands for different strings in the two tokenizers, so the drafts would be noise.",
        "use a draft model trained with the target's tokenizer",
        detail="first_id",
    ),
    Rule(
        "token-bytes",
        "tokenizer.token_bytes",
        "refuse",
        _READS_IDS,
        "An id adds other bytes to the text in the two tokenizers.",
        "use a draft model trained with the target's tokenizer",
    ),
    Rule(
        "added-tokens",
        "tokenizer.added_tokens",
        "refuse",
        _READS_IDS,
        "The added tokens, their order or their flags differ, so markers would be read as text or the reverse.",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "segmentation",
        "tokenizer.segmentation",
        "refuse",
        _READS_IDS,
        "Merges or scores differ: the draft was trained on text cut into other ids.",
        "use a draft model trained with the target's tokenizer",
    ),
    Rule(
        "segmentation-kind",
        "tokenizer.model",
        "refuse",
        _READS_IDS,
        "The tokenizers are of different kinds: the draft was trained on text cut into other ids.",
        "use a draft model trained with the target's tokenizer",
    ),
    Rule(
        "normalizer",
        "tokenizer.normalizer",
        "refuse",
        _READS_IDS,
        "The tokenizers normalise text differently, so the same text becomes other ids.",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "pre-tokenizer",
        "tokenizer.pre_tokenizer",
        "refuse",
        _READS_IDS,
        "The tokenizers split text differently before merging, so the same text becomes other ids.",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "byte-fallback",
        "tokenizer.byte_fallback",
        "refuse",
        _READS_IDS,
        "Only one of the tokenizers falls back to bytes for text that it does not know.",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "unknown-token",
        "tokenizer.unknown",
        "refuse",
        _READS_IDS,
        "The tokenizers turn unknown text into other ids.",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "boundary-ids",
        "tokenizer.post_processor",
        "refuse",
        _READS_IDS,
        "The tokenizers put other ids around an encoded text (BOS and EOS rule).",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "prefix-ids",
        "boundaries.prefix_ids",
        "refuse",
        _READS_IDS,
        "A text begins with other ids for the draft (BOS rule).",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "suffix-ids",
        "boundaries.suffix_ids",
        "refuse",
        _READS_IDS,
        "A text ends with other ids for the draft (EOS rule).",
        "give the draft the target's tokenizer files",
    ),
    Rule(
        "bos-id",
        "boundaries.bos_id",
        "refuse",
        _READS_IDS,
        "The models begin a text with different ids.",
        "set the draft's bos_token_id to the target's in config.json, generation_config.json and tokenizer",
    ),
    Rule(
        "stop-ids",
        "boundaries.stop_ids",
        "refuse",
        _READS_IDS,
        "The models end a generation with different ids: what is the end to one is text to the other.",
        "set the draft's eos_token_id to the target's in generation_config.json",
    ),
    Rule(
        "chat-template",
        "template.digest",
        "refuse",
        _READS_IDS,
        "The draft was made for conversations written in another template.",
        "give the draft the target's chat_template.jinja if it was trained with it, else use another draft",
        compare="alike",
    ),
    Rule(
        "chat-template-missing",
        "template.digest",
        "slower",
        _READS_IDS,
        "The draft has no chat template: a base model may predict conversations badly.",
        "expect lower acceptance in conversations, or use a draft trained with the target's template",
        compare="has",
    ),
    Rule(
        "rendered-prompts",
        "template.probes",
        "refuse",
        _READS_IDS,
        "Fixed conversations or texts become other ids for the draft.",
        "see the rules above for the cause; if there is none, the tokenizers' own code differs: use one class for both",
        compare="common",
    ),
    Rule(
        "output-map",
        "tokenizer.digest",
        "refuse",
        frozenset(("reduced",)),
        "A reduced head needs a declared map from its columns to target ids; ids that are missing get p = 0.",
        f"put {OUTPUT_MAP}, a list with the target id of every column, into the draft's folder",
        compare="known",
        other="model.output_map.digest",
    ),
    Rule(
        "output-map-unused",
        "tokenizer.digest",
        "refuse",
        frozenset(("same",)),
        "The draft's head is reduced: its columns are not the target's ids, and this drafter would take them for ids.",
        f"use a drafter that reads {OUTPUT_MAP}, or check it as --kind reduced",
        compare="lacks",
        other="model.output_map.digest",
    ),
    Rule(
        "output-map-columns",
        "tokenizer.digest",
        "refuse",
        frozenset(("reduced",)),
        "The map has more or fewer entries than the head has columns.",
        f"give every column of the draft's head one entry of {OUTPUT_MAP}, in order",
        compare="true",
        other="model.output_map.is_complete",
    ),
    Rule(
        "output-map-injective",
        "tokenizer.digest",
        "refuse",
        frozenset(("reduced",)),
        "Two output columns stand for one target id, so the draft's law is not defined.",
        f"give every column of {OUTPUT_MAP} an id of its own, or -1",
        compare="true",
        other="model.output_map.is_injective",
    ),
    Rule(
        "output-map-range",
        "model.head_width",
        "refuse",
        frozenset(("reduced",)),
        "The map names an id that the target's logits do not have.",
        f"correct {OUTPUT_MAP}: ids are below the width of the target's logits",
        compare="below",
        other="model.output_map.largest_id",
    ),
    Rule(
        "head-short",
        "tokenizer.size",
        "slower",
        frozenset(("same",)),
        "The draft's head and embeddings have fewer columns than the tokenizer has ids: the last ids are never proposed.",
        "nothing is needed for the output to be right; ids that the draft lacks get p = 0, and behind one it drafts no more",
        compare="at_least",
        other="model.head_width",
    ),
    Rule(
        "head-width",
        "model.head_width",
        "note",
        frozenset(("same",)),
        "The heads are padded differently; columns that the target lacks are removed before the draw.",
        "none is needed: tokenizers are compared, not widths",
    ),
    Rule(
        "hidden-size",
        "model.hidden_size",
        "refuse",
        frozenset(("features",)),
        "The heads were made for hidden states of another size.",
        "use heads made for this target",
        other="features.hidden_size",
        compare="alike",
    ),
    Rule(
        "tapped-layers",
        "model.num_layers",
        "refuse",
        frozenset(("features",)),
        "The heads read a layer that the target does not have.",
        "use heads made for this target",
        compare="at_most",
        other="features.last_layer",
    ),
    Rule(
        "target-revision",
        "weights.digest",
        "slower",
        frozenset(("features",)),
        "The heads were trained on the hidden states of other weights.",
        "train the heads on this target, or expect lower acceptance",
        compare="alike",
        other="features.weights",
    ),
    Rule(
        "block-invariance",
        "positions.block_limit",
        "slower",
        _ALL,
        "The target's RoPE depends on the length of the call: it is not block-invariant past its original length.",
        "speculation stops by itself at that length; shorter contexts are not affected",
        compare="absent",
    ),
    Rule(
        "context-limit",
        "positions.context_limit",
        "slower",
        _MODELS,
        "The draft's context is shorter than the target's: it cannot draft behind its end.",
        "expect plain speed in long contexts",
        compare="at_least",
    ),
    Rule(
        "same-weights",
        "weights.digest",
        "slower",
        _MODELS,
        "The draft is the target itself: drafting costs as much as it saves.",
        "use a smaller draft model",
        compare="differs",
    ),
    Rule(
        "rope",
        "positions.rope",
        "note",
        _MODELS,
        "The models number positions differently; each runs the prompt itself, and nothing is shared between them.",
        "none is needed",
    ),
    Rule(
        "sliding-window",
        "positions.sliding_window",
        "note",
        _MODELS,
        "The models look back over different windows.",
        "none is needed",
    ),
    Rule(
        "special-tokens",
        "tokenizer.special",
        "note",
        _READS_IDS,
        "The tokenizers name other ids for a role, such as padding; roles that matter have rules of their own.",
        "none is needed",
    ),
    Rule(
        "dtype",
        "numerics.dtype",
        "note",
        _MODELS,
        "The models compute in different dtypes.",
        "none is needed: the draft's law is what it computes",
    ),
    Rule(
        "license",
        "license",
        "note",
        _MODELS,
        "The models are under different licences.",
        "see that both allow what you do",
        compare="alike",
    ),
)
