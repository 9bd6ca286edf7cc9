"""Prompt lookup: the index against brute force, its costs, the phrasebook, the length rule, and sessions in rounds."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex, overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specframe_prompt_lookup
from specframe import Commit, DraftRequest, InvalidStrategy, Round, TargetFacts
from specframe.proposal import Drawn, Proposal, lend
from specframe.strategy import Strategy, structure
from specframe_prompt_lookup import PromptLookup, PromptLookupOptions
from specframe_prompt_lookup.drafter import PromptLookupSession
from specframe_prompt_lookup.index import MAX_AGREEMENT, Match, NgramIndex, count_agreeing
from specframe_prompt_lookup.phrasebook import Phrasebook
from specframe_prompt_lookup.trust import Trust

VOCAB_SIZE = 100
STOP_ID = 99


class LetterTokenizer:
    """One token per character; characters beyond ASCII lie outside the vocabulary."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) - ord("a") + 2 for letter in text]


FACTS = TargetFacts(
    vocab_size=VOCAB_SIZE, stop_ids=frozenset({STOP_ID}), context_limit=None, tokenizer=LetterTokenizer()
)


class FakeContext:
    """The core's side of a round, with an optional set of forbidden ids."""

    def __init__(self, ids: list[int], forbidden: tuple[int, ...] = ()) -> None:
        self.ids: Sequence[int] = ids
        self._ids, self._forbidden = ids, forbidden

    def is_exhausted(self) -> bool:
        return False

    def is_allowed(self, token: int) -> bool:
        return token not in self._forbidden

    def draw(self, logits: Any, ids: Any, node: int) -> Drawn:
        raise AssertionError("prompt lookup never draws")

    def push(self, token: int) -> None:
        self._ids.append(token)


class Generation:
    """A session and the authoritative ids that it has seen."""

    def __init__(self, prompt: list[int], drafter: PromptLookup | None = None, **options: Any) -> None:
        drafter = drafter or PromptLookup(PromptLookupOptions(**options), FACTS)
        self.ids: list[int] = []
        policy: Any = None  # not looked at
        request = DraftRequest(tuple(prompt), FACTS, policy, FACTS.stop_ids)
        self.session: PromptLookupSession = drafter.open(request)
        self.commit(prompt)

    def commit(self, ids: list[int], num_proposed: int = 0, num_accepted: int = 0) -> None:
        self.session.commit(Commit(tuple(ids), len(self.ids), num_proposed, num_accepted))
        self.ids += ids

    def propose(self, room: int = 8, before: tuple[int, ...] = (), forbidden: tuple[int, ...] = ()) -> list[int]:
        """Return what the session adds to a round in which ``before`` is already proposed."""
        proposal = Proposal()
        round = Round(
            FakeContext(list(self.ids), forbidden),
            proposal,
            index=0,
            room=room,
            vocab_size=VOCAB_SIZE,
            stop_ids=FACTS.stop_ids,
        )

        def propose_before(round: Round) -> None:
            for token in before:
                assert round.offer(token)

        lend(round, "other", propose_before)
        lend(round, "prompt_lookup", self.session.propose)
        assert proposal.laws == [None] * len(proposal)
        return proposal.ids[len(before) :]


def ids_of(text: str) -> list[int]:
    return LetterTokenizer().encode(text, add_special_tokens=False)


def brute_force(ids: list[int], min_ngram: int, max_ngram: int) -> Match | None:
    """Search every end of every size, as the definition says."""
    for n in range(max_ngram, min_ngram - 1, -1):
        for end in range(len(ids) - 1, n - 1, -1):
            if ids[end - n : end] == ids[-n:]:
                longest = max(m for m in range(1, end + 1) if ids[end - m : end] == ids[-m:])
                return Match(max(n, min(longest, MAX_AGREEMENT)), end)
    return None


letters = st.lists(st.integers(0, 2), max_size=60)


@given(
    prompt=letters,
    output=st.lists(letters, max_size=4),
    provisional=st.lists(st.integers(0, 2), max_size=12),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
)
def test_index_finds_what_a_search_of_everything_finds(
    prompt: list[int], output: list[list[int]], provisional: list[int], sizes: list[int]
) -> None:
    """The longest suffix wins, then the most recent, provisional ids included, however the ids arrived."""
    index = NgramIndex(*sizes)
    ids: list[int] = []
    for chunk in [prompt, *output]:
        index.extend(chunk)
        ids += chunk
        assert index.find() == brute_force(ids, *sizes)
        assert index.find(provisional) == brute_force(ids + provisional, *sizes)
    assert len(index) == len(ids)


@given(ids=letters, near=st.integers(-5, 70), sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted))
def test_of_equal_matches_the_nearest_to_the_source_wins(ids: list[int], near: int, sizes: list[int]) -> None:
    """The longest size still decides; of its occurrences the nearest within 16 positions, else the most recent."""
    index = NgramIndex(*sizes)
    index.extend(ids)
    found, recent = index.find(near=near), index.find()
    if recent is None:
        assert found is None
        return
    n = next(n for n in range(sizes[1], 0, -1) if any(ids[end - n : end] == ids[-n:] for end in range(n, len(ids))))
    ends = [end for end in range(n, len(ids)) if ids[end - n : end] == ids[-n:]]
    close = [end for end in ends if abs(end - near) <= 16]
    assert found.next_pos == (min(close, key=lambda end: (abs(end - near), end)) if close else recent.next_pos)


def test_an_edited_copy_comes_back_to_its_source() -> None:
    """After a change the text goes on from where it was copied, not from the last place that looks alike."""
    #         0123456789...            the copy, with X for d; then 'ef' stands near the source and, more recently, elsewhere
    prompt = "abcdefghijklm efz "
    generation = Generation(ids_of(prompt + "ab"), length="fixed")
    assert generation.propose(room=2) == ids_of("cd")
    generation.commit(ids_of("cX"), num_proposed=2, num_accepted=1)
    generation.commit(ids_of("ef"))
    assert generation.propose(room=3) == ids_of("ghi")


@given(ids=letters, provisional=letters)
def test_looking_up_provisional_ids_leaves_no_trace(ids: list[int], provisional: list[int]) -> None:
    """Rejected ids must not be found later: a lookup with provisional ids changes nothing."""
    index, untouched = NgramIndex(1, 4), NgramIndex(1, 4)
    index.extend(ids)
    untouched.extend(ids)
    match = index.find(provisional)
    if match:
        list(itertools.islice(index.copy(match.next_pos, provisional), 20))
    assert index._ids == untouched._ids
    assert index._tables == untouched._tables


@given(ids=st.lists(st.integers(0, 2), min_size=1, max_size=20), provisional=letters, data=st.data())
def test_copy_reads_on_through_its_own_output(ids: list[int], provisional: list[int], data: st.DataObject) -> None:
    """A copy is what appending token by token gives, past the end of the context too."""
    index = NgramIndex(1, 2)
    index.extend(ids)
    next_pos = data.draw(st.integers(0, len(ids) + len(provisional) - 1))
    expected = ids + provisional
    for pos in range(next_pos, next_pos + 50):
        expected.append(expected[pos])
    copied = list(itertools.islice(index.copy(next_pos, provisional), 50))
    assert copied == expected[len(ids) + len(provisional) :]


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_periodic_text_gets_full_length(period: int) -> None:
    """Repetition shorter than the room still fills the room."""
    generation = Generation((list(range(period)) * 9)[: 2 * period + 3], length="fixed")
    expected = [(2 * period + 3 + i) % period for i in range(20)]
    assert generation.propose(room=20) == expected


class CountedId(int):
    """A token id that counts how often any of them is hashed or compared, which is what dict and list work costs."""

    num_operations = 0

    def __hash__(self) -> int:
        CountedId.num_operations += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedId.num_operations += 1
        return int.__eq__(self, other)


class CountedList(list[int]):
    """A list that counts the items it hands out."""

    num_reads = 0

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> list[int]: ...
    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        CountedList.num_reads += len(value) if isinstance(key, slice) else 1
        return value

    def __iter__(self) -> Any:
        raise AssertionError("the whole context was read")


def count_work(context: list[int], tokens: list[int], max_ngram: int = 4) -> list[tuple[int, int]]:
    """Return (hashes and comparisons, reads) of every token that is looked up and committed after a context."""
    index = NgramIndex(2, max_ngram)
    index._ids = CountedList()
    index.extend([CountedId(token) for token in context])
    counts = []
    for token in tokens:
        CountedId.num_operations = CountedList.num_reads = 0
        match = index.find([CountedId(7)]) or index.find()
        if match:
            list(itertools.islice(index.copy(match.next_pos), 8))
        index.extend([CountedId(token)])
        counts.append((CountedId.num_operations, CountedList.num_reads))
    return counts


@pytest.mark.parametrize("kind", ["repetitive", "fresh"])
def test_work_per_token_does_not_depend_on_the_context(kind: str) -> None:
    """A token after 32k others costs exactly the operations that it costs after 1k."""
    stream = [i % 16 if kind == "repetitive" else 1000 + i for i in range(32 * 1024 + 200)]
    short = count_work(stream[:1024], stream[1024:1224])
    long = count_work(stream[: 32 * 1024], stream[32 * 1024 :])
    assert short == long
    assert min(operations for operations, _ in short) > 0, "nothing was counted"


def test_work_of_a_whole_context_is_linear() -> None:
    """Indexing hashes every n-gram of every token once, and no more."""
    for num_ids in (1024, 32 * 1024):
        index = NgramIndex(2, 4)
        CountedId.num_operations = 0
        index.extend([CountedId(i) for i in range(num_ids)])
        hashes = sum(n * (num_ids - n) for n in (2, 3, 4))
        # zip makes one more n-gram, the last, before it sees that nothing follows; it is not hashed.
        assert CountedId.num_operations == hashes
        assert sum(map(len, index._tables.values())) <= 3 * num_ids


def test_count_agreeing() -> None:
    """Only equal ends count, up to the shorter sequence."""
    assert count_agreeing([1, 2, 3], [9, 2, 3]) == 2
    assert count_agreeing([2, 3], [1, 2, 3]) == 2
    assert count_agreeing([1], [2]) == count_agreeing([], [2]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_ngram": 0}, "'max_ngram' must be >= 1 (got 0)"),
        ({"min_ngram": -1}, "'min_ngram' must be >= 1 (got -1)"),
        ({"max_tokens": 0}, "'max_tokens' must be >= 1 (got 0)"),
        ({"max_ngram": True}, "'max_ngram' must be an integer (got True)"),
        ({"max_ngram": 2.5}, "'max_ngram' must be an integer (got 2.5)"),
        ({"max_ngram": 2, "min_ngram": 3}, "'min_ngram' must be <= 'max_ngram' (got 3 and 2)"),
        ({"length": "long"}, "'length' must be one of trust, fixed (got 'long')"),
        ({"phrases": "text"}, "'phrases' must be a list of strings (got 'text')"),
        ({"phrase_files": (1,)}, "'phrase_files' must be a list of strings (got (1,))"),
    ],
)
def test_options_errors_name_the_option(options: dict[str, Any], message: str) -> None:
    """Each wrong option says its name, the rule and what was got."""
    with pytest.raises(InvalidStrategy) as caught:
        PromptLookupOptions(**options)
    assert str(caught.value) == message


def test_options_can_be_read_from_a_strategy_file() -> None:
    """Plain data as TOML gives it makes options, and an unknown key is told."""
    data = {"max_ngram": 3, "max_tokens": 4, "phrases": ["a", "b"]}
    options = structure(data, PromptLookupOptions, "options")
    assert options == PromptLookupOptions(max_ngram=3, max_tokens=4, phrases=("a", "b"))
    with pytest.raises(InvalidStrategy, match=r"max_ngrams.*allowed: max_ngram, "):
        structure({"max_ngrams": 3}, PromptLookupOptions, "options")


@pytest.mark.parametrize("name", ["prompt_lookup", "prompt_lookup_block"])
def test_shipped_strategies_are_valid(name: str) -> None:
    """The strategy file parses and its options are this drafter's."""
    strategy = Strategy.from_toml(Path(__file__).parents[2] / "manifests" / "strategies" / f"{name}.toml")
    assert {use.use for use in strategy.drafters} == {"prompt_lookup"}
    for use in strategy.drafters:
        assert structure(use.options, PromptLookupOptions, "options").length == "fixed"


def test_registration() -> None:
    """The hook registers one drafter that needs no tokenizer and draws nothing."""
    calls: list[Any] = []
    specframe_prompt_lookup.specframe_register_drafters(lambda *args, **kwargs: calls.append((args, kwargs)))
    ((args, kwargs),) = calls
    assert args == ("prompt_lookup", PromptLookup)
    assert kwargs["options"] is PromptLookupOptions
    assert (kwargs["needs"].tokenizer, kwargs["needs"].draws, kwargs["api"]) == ("none", False, 1)


def test_import_is_cheap() -> None:
    """Importing the plugin loads no heavy package, and none of the ones that only phrases need."""
    code = "import sys, specframe_prompt_lookup; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "numpy", "ahocorasick"} & set(run.stdout.split())


@given(
    phrases=st.lists(st.lists(st.integers(0, 2), max_size=15), max_size=4),
    tail=st.lists(st.integers(0, 2), max_size=12),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted),
)
def test_phrasebook_finds_what_a_search_of_everything_finds(
    phrases: list[list[int]], tail: list[int], sizes: list[int]
) -> None:
    """The longest suffix wins, then the last phrase, then the last place in it; something must follow."""
    min_ngram, max_ngram = sizes
    expected = None
    for n in range(min(max_ngram, len(tail)), min_ngram - 1, -1):
        ends = [
            (phrase, end) for phrase in phrases for end in range(n, len(phrase)) if phrase[end - n : end] == tail[-n:]
        ]
        if ends:
            phrase, end = ends[-1]
            expected = Match(max(n, count_agreeing(phrase[:end], tail)), end), phrase[end:]
            break
    found = Phrasebook(phrases, *sizes).find(tail)
    assert (found and (found[0], list(found[1]))) == expected


def test_phrase_is_used_where_the_context_has_no_match() -> None:
    """The context goes first; a phrase is followed to its end and no further."""
    options: dict[str, Any] = {"phrases": ("helloworld",), "length": "fixed"}
    assert Generation(ids_of("sayhell"), **options).propose() == ids_of("oworld")
    assert Generation(ids_of("hellxhell"), **options).propose(room=1) == ids_of("x")
    assert Generation(ids_of("zzhell"), **options).propose(before=tuple(ids_of("ow"))) == ids_of("orld")


def test_ids_outside_the_vocabulary_split_a_phrase() -> None:
    """A padded tokenizer may give ids that the target has no logit for: never offered, and nothing joins over them."""
    beyond = chr(ord("a") + VOCAB_SIZE)
    generation = Generation(ids_of("ab"), phrases=(f"abc{beyond}def",), length="fixed")
    assert generation.propose() == ids_of("c")
    assert Generation(ids_of("bc"), phrases=(f"abc{beyond}def",), length="fixed").propose() == []


def test_phrase_files(tmp_path: Path) -> None:
    """Each file is one more phrase."""
    path = tmp_path / "past.txt"
    path.write_text("pastoutput", encoding="utf-8")
    assert Generation(ids_of("xpast"), phrase_files=(str(path),), length="fixed").propose() == ids_of("output")


def test_phrase_errors(tmp_path: Path) -> None:
    """A missing file, a file that is not text and a target without tokenizer are told in one line."""
    missing = tmp_path / "none.txt"
    with pytest.raises(InvalidStrategy, match=r"phrase file '.*none\.txt' cannot be read: No such file"):
        PromptLookup(PromptLookupOptions(phrase_files=(str(missing),)), FACTS)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidStrategy, match=r"phrase file '.*binary\.txt' must be UTF-8 text"):
        PromptLookup(PromptLookupOptions(phrase_files=(str(binary),)), FACTS)
    bare = TargetFacts(vocab_size=VOCAB_SIZE, stop_ids=frozenset(), context_limit=None)
    with pytest.raises(InvalidStrategy, match="'phrases' must be tokenised, and this target has no tokenizer"):
        PromptLookup(PromptLookupOptions(phrases=("a",)), bare)
    PromptLookup(PromptLookupOptions(), bare)


@pytest.mark.parametrize("prompt", [[], [5], [5, 6], [5, 6, 7, 8]])
def test_no_match_no_proposal(prompt: list[int]) -> None:
    """Short and fresh prompts propose nothing."""
    assert Generation(prompt).propose() == []


def test_proposal_keeps_to_the_room_and_to_max_tokens() -> None:
    """The smaller limit holds, and no room is no proposal."""
    prompt = [*range(20), *range(10)]
    assert Generation(prompt, length="fixed").propose(room=5) == [10, 11, 12, 13, 14]
    assert Generation(prompt, length="fixed", max_tokens=3).propose(room=5) == [10, 11, 12]
    assert Generation(prompt, length="fixed").propose(room=0) == []


def test_proposal_ends_where_the_round_refuses() -> None:
    """After a stop token or a forbidden id nothing more is offered."""
    prompt = [1, 2, 3, STOP_ID, 4, 5, 1, 2]
    assert Generation(prompt, length="fixed").propose() == [3, STOP_ID]
    assert Generation(prompt, length="fixed").propose(forbidden=(3,)) == []


def test_prompt_ids_outside_the_vocabulary_are_never_offered() -> None:
    """A prompt may hold placeholders that the target has no logit for; the proposal ends before them."""
    assert Generation([1, 2, 3, VOCAB_SIZE, 4, 1, 2], length="fixed").propose() == [3]


def test_a_round_that_others_began_is_continued() -> None:
    """What others proposed counts as context in this round, and is forgotten after it."""
    generation = Generation([1, 2, 3, 4, 5, 6, 9], length="fixed")
    assert generation.propose() == []
    assert generation.propose(room=4, before=(2, 3)) == [4, 5]
    generation.commit([8, 2], num_proposed=4, num_accepted=0)
    assert generation.propose() == []


def test_trust_follows_the_match() -> None:
    """Two agreeing ids are worth one token, longer matches more, and the factor keeps its bounds."""
    trust = Trust()
    assert [trust.num_tokens(n) for n in (1, 2, 3, 8, 16)] == [1, 1, 2, 7, 15]
    for _ in range(5):
        trust.learn(3, 3)
    assert [trust.num_tokens(n) for n in (1, 2, 5)] == [1, 4, 16]
    for _ in range(9):
        trust.learn(3, 2)
    assert [trust.num_tokens(n) for n in (2, 3, 9)] == [1, 1, 4]


def test_session_learns_from_its_own_offers() -> None:
    """Acceptance of the own part moves the length; a round that ended before it does not."""
    pattern = [1, 2, 3, 10, 11, 12, 13, 14, 20, 1, 2, 3]
    generation = Generation(pattern)
    assert len(generation.propose()) == 2
    generation.commit([30, 1, 2, 3], num_proposed=2, num_accepted=0)
    assert len(generation.propose()) == 1, "a failure halves"

    generation = Generation(pattern)
    assert len(generation.propose()) == 2
    generation.commit([10, 11, 40, 1, 2, 3], num_proposed=2, num_accepted=2)
    assert len(generation.propose()) == 4, "a success doubles"

    generation = Generation([*pattern[:-3], 1, 2])
    assert len(generation.propose(before=(3,))) == 2
    generation.commit([41, 1, 2, 3], num_proposed=3, num_accepted=0)
    assert len(generation.propose()) == 2, "the own offers were not put to the test"


def test_fixed_length_does_not_learn() -> None:
    """With the rule off, every proposal has the same length."""
    generation = Generation([1, 2, 3, 10, 11, 12, 13, 1, 2, 3], length="fixed", max_tokens=3)
    for _ in range(4):
        assert len(generation.propose()) == 3
        generation.commit([50, 1, 2, 3], num_proposed=3, num_accepted=0)


def test_repetition_soon_fills_the_room() -> None:
    """Text that repeats reaches full proposals within a few rounds."""
    generation, lengths = Generation([0, 1, 2, 0, 1]), []
    for _ in range(4):
        proposed = generation.propose(room=15)
        lengths.append(len(proposed))
        extra = (len(generation.ids) + len(proposed)) % 3
        generation.commit([*proposed, extra], len(proposed), len(proposed))
    assert lengths == [1, 6, 15, 15]


def test_nothing_is_kept_across_requests() -> None:
    """A second request, overlapping or later, sees neither the ids nor the trust of the first."""
    drafter = PromptLookup(PromptLookupOptions(), FACTS)
    prompt = [1, 2, 3, 10, 11, 12, 13, 1, 2, 3]
    first = Generation(prompt, drafter)
    expected = first.propose()
    first.commit([*expected, 50, 60], len(expected), len(expected))
    second = Generation(prompt, drafter)
    assert second.propose() == expected
    assert Generation([50, 1, 2], drafter).propose() == []
    first.session.close()
    second.session.close()
    drafter.reset()
    assert Generation(prompt, drafter).propose() == expected
    drafter.close()
