"""Stop strings, ids and budgets against brute force, whatever the tokens are (case C5)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.errors import InvalidRequest
from specframe.stop import Stopper, StopStrings, as_stop_strings
from specframe.testing import byte_tokenizer
from specframe.text import TextDecoder, TokenBytes

BYTES = byte_tokenizer()
TABLE = TokenBytes(BYTES)
IDS = {BYTES.decode([i]): i for i in range(len(BYTES)) if "\ufffd" not in BYTES.decode([i])}
EOS, EOT = BYTES.convert_tokens_to_ids("</s>"), BYTES.convert_tokens_to_ids("<eot>")

# Few letters, so that stop strings, their prefixes and their overlaps are common.
letters = st.sampled_from("abx")
stop_lists = st.lists(st.text(letters, min_size=1, max_size=4), max_size=4)
chunk_lists = st.lists(st.text(letters, max_size=5), max_size=12)


def stopper(stop=(), budget=100, stop_ids=(), criterion=None, table=TABLE):
    return Stopper(
        budget=budget,
        stop_ids=frozenset(stop_ids),
        stop_strings=as_stop_strings(stop),
        decoder=TextDecoder(table) if table else None,
        criterion=criterion,
    )


def run(ids, **options):
    """Push ids until the output is done; return the text, the ids kept, reason and match."""
    made = stopper(**options)
    kept, text = [], ""
    for token in ids:
        kept.append(token)
        made.push(token)
        text += made.take_text()
        if made.is_done:
            break
    else:
        made.end("length")
        text += made.take_text()
    return text, kept, made.reason, made.match


def brute_force(text, stops):
    """Return (offset of the cut, end of the match, match) of the earliest end, the longest string there; or None."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return end - len(longest), end, longest
    return None


@given(chunks=chunk_lists, stops=stop_lists)
@settings(max_examples=400)
def test_search_equals_brute_force_in_any_chunking(chunks, stops):
    """Prevents a stop string from being missed across chunks, cut at another offset, or text from being told too early."""
    search, tail, text, match = StopStrings(stops), "", "", None
    for chunk in chunks:
        found = search.search(tail, chunk)
        text, tail, match = text + found.text, found.tail, found.match
        if match is not None:
            break
        # What is held is what may still begin a stop string, and no more.
        held = [n for stop in stops for n in range(1, len(stop)) if (text + tail).endswith(stop[:n])]
        assert len(tail) == max(held, default=0)
    full = "".join(chunks)
    expected = brute_force(full, stops)
    if expected is None:
        assert match is None
        assert text + tail == full
    else:
        assert (len(text), match) == (expected[0], expected[2])
        assert text == full[: expected[0]]


tokens = st.lists(st.sampled_from([IDS[c] for c in ("a", "b", "x", "ab", "abc", "xay")]), max_size=15)


@given(ids=tokens, stops=stop_lists)
@settings(max_examples=400)
def test_stopper_equals_token_at_a_time(ids, stops):
    """Prevents case C5: another character offset or id list than decoding one token at a time gives."""
    text = BYTES.decode(ids)
    ends = [len(BYTES.decode(ids[: n + 1])) for n in range(len(ids))]
    expected = brute_force(text, stops)
    found_text, kept, reason, match = run(ids, stop=stops)
    if expected is None:
        assert (found_text, kept, reason, match) == (text, ids, "length", None)
    else:
        cut, end, string = expected
        num_kept = next(n for n, at in enumerate(ends, 1) if at >= end)
        assert (found_text, kept, reason, match) == (text[:cut], ids[:num_kept], "stop", string)


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "num_kept", "match"),
    [
        ([*"xxab", *"y" * 20], ["ab"], "xx", 4, "ab"),  # early in a long block
        (["x", "a", "b", "y"], ["ab"], "x", 3, "ab"),  # straddles two tokens
        (["x", "xay", "b"], ["ya", "yb"], "xxa", 3, "yb"),  # begins inside a token
        (["x", "xay", "b"], ["a"], "xx", 2, "a"),  # ends inside a multi-character token
        (["x", "ab", "b"], ["ab", "b"], "x", 2, "ab"),  # at one end the longest wins
        (["x", "b", "ab"], ["ab", "b"], "x", 2, "b"),  # the earlier end wins
        (["a", "b", "c"], ["abcd", "bc"], "a", 3, "bc"),  # a shorter one ends while a longer one is open
        (["a", "b", "x"], ["abc"], "abx", 3, None),  # what was held comes out
        (["世", "x"], ["世"], "", 1, "世"),
    ],
)
def test_examples(pieces, stops, text, num_kept, match):
    """Prevents each published form of case C5, one by one."""
    found_text, kept, _, found = run([IDS[piece] for piece in pieces], stop=stops)
    assert (found_text, len(kept), found) == (text, num_kept, match)


def test_a_stop_string_of_split_characters():
    """Prevents a stop string from being missed when its characters are split over tokens."""
    ids = [*"x🙂世y".encode()]
    text, kept, _, match = run(ids, stop=["🙂世"])
    assert (text, match) == ("x", "🙂世")
    assert len(kept) == 1 + 4 + 3


def test_text_is_told_as_soon_as_it_is_certain():
    """Prevents text from being held although no stop string can begin there."""
    made = stopper(["abc"])
    deltas = []
    for piece in ("x", "a", "b", "x", "a"):
        made.push(IDS[piece])
        deltas.append(made.take_text())
    assert deltas == ["x", "", "", "abx", ""]
    made.end("cancelled")
    assert made.take_text() == "a"
    assert made.take_text() == ""


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [3], ["a", None]])
def test_empty_and_foreign_stop_strings_are_refused(stop):
    """Prevents an empty stop string, which matches everywhere, from ending every output at once."""
    with pytest.raises(InvalidRequest, match="'stop' must hold non-empty strings"):
        as_stop_strings(stop)


def test_a_single_string_is_one_stop_string():
    """Prevents "ab" from being taken for the two stop strings "a" and "b"."""
    assert as_stop_strings("ab").strings == ("ab",)
    assert as_stop_strings(None).strings == as_stop_strings([]).strings == ()
    assert as_stop_strings(["a", "b"]).strings == ("a", "b")


@pytest.mark.parametrize("stop_id", [EOS, EOT, IDS["b"]])
def test_stop_ids_end_the_output_and_are_kept(stop_id):
    """Prevents a second end-of-sequence id from being overlooked (case C1); the id stays in the output."""
    text, kept, reason, match = run([IDS["a"], stop_id, IDS["x"]], stop_ids=[EOS, EOT, IDS["b"]])
    assert (kept, reason, match) == ([IDS["a"], stop_id], "stop", stop_id)
    assert text == ("ab" if stop_id == IDS["b"] else "a")  # special ids have no text


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_budget_counts_tokens(budget):
    """Prevents a budget counted per round (case C4): exactly so many tokens, whatever their text."""
    text, kept, reason, match = run([IDS["xay"]] * 5, budget=budget)
    assert (text, len(kept), reason, match) == ("xay" * budget, budget, "length", None)


def test_a_stop_at_the_last_token_of_the_budget_is_a_stop():
    """Prevents the reason from saying "length" where the output was complete."""
    ids = [IDS["x"], IDS["ab"]]
    assert run(ids, stop=["b"], budget=2)[1:] == (ids, "stop", "b")
    assert run([IDS["x"], EOS], stop_ids=[EOS], budget=2)[2:] == ("stop", EOS)
    assert run(ids, criterion=lambda token: token == IDS["ab"], budget=2)[2] == "stop"


def test_a_stop_string_and_a_stop_id_at_one_token():
    """Prevents text after the stop string from being told because the id stops too."""
    assert run([IDS["x"], IDS["ab"]], stop=["a"], stop_ids=[IDS["ab"]]) == ("x", [IDS["x"], IDS["ab"]], "stop", "a")


def test_held_text_comes_out_when_something_else_stops():
    """Prevents the beginning of a stop string from being lost when the output ends before its rest."""
    assert run([IDS["x"], IDS["a"], EOS], stop=["ab"], stop_ids=[EOS])[0] == "xa"
    assert run([IDS["x"], IDS["a"]], stop=["ab"], budget=2)[0] == "xa"
    assert run([IDS["x"], *"🙂".encode()[:2]], budget=3)[0] == "x\ufffd"


def test_criterion_is_asked_once_per_token_until_the_end():
    """Prevents a caller's criterion from seeing tokens twice, or tokens after the end."""
    asked = []
    run([1, 2, 3, EOS, 5], stop_ids=[EOS], criterion=lambda token: asked.append(token))
    assert asked == [1, 2, 3]


def test_without_a_tokenizer_ids_and_budgets_still_stop():
    """Prevents a target without a tokenizer from failing or from never ending."""
    assert run([5, 6, 7], stop_ids=[6], table=None) == ("", [5, 6], "stop", 6)
    assert run([5, 6, 7], budget=2, table=None)[1:3] == ([5, 6], "length")


def test_pushing_after_the_end_is_a_bug():
    """Prevents a token from being counted after the output is done."""
    made = stopper(budget=1)
    assert made.push(1)
    with pytest.raises(AssertionError):
        made.push(1)
    made.end("cancelled")
    assert made.reason == "length"  # the first reason stays
