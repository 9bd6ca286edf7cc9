"""How a conversation is written: which ids are forced, and whose turn it is. Knows templates and ids; no model."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from specframe.errors import UnsupportedModel, described

_MARKS = ("\ue000", "\ue001", "\ue002")  # private-use characters, which no template holds


@attrs.frozen
class Script:
    """The ids that a chat template puts around turns: before the first, from user to assistant, and back."""

    opening: tuple[int, ...]
    to_assistant: tuple[int, ...]
    to_user: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> Script:
        """Read the script off a tokenizer's chat template. Raises ``UnsupportedModel`` without one."""
        roles = ("user", "assistant", "user")
        try:
            text = tokenizer.apply_chat_template(
                [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)], tokenize=False
            )
            parts = [text.partition(_MARKS[0])[0]]
            parts += [text.partition(left)[2].partition(right)[0] for left, right in itertools.pairwise(_MARKS)]
        except Exception as error:  # no template, or one that refuses
            raise UnsupportedModel(
                f"the target has no chat template to write conversations with ({described(error)})"
            ) from error
        opening, *others = (tuple(tokenizer.encode(part, add_special_tokens=False)) for part in parts)
        if not all(others):
            raise UnsupportedModel("the target's chat template puts nothing between turns, so none has an end")
        return cls(opening or others[1], *others)  # a user's turn follows something, be it an earlier answer


class Conversation:
    """One conversation in the making: a first prompt, or the beginning of one (``is_whole`` False), then turn after turn.

    ``answers`` tells of each id whether it is the assistant's, its end included: only these are learned from. ``turns``:
    the ids of every turn, the user's first, without what the template or a stop id puts around them.
    """

    def __init__(
        self, script: Script, prompt_ids: Sequence[int], stop_ids: frozenset[int], *, is_whole: bool = True
    ) -> None:
        self._script, self._stop_ids = script, stop_ids
        self._forced = deque((*script.opening, *prompt_ids))
        self.is_answer = False
        self.ids: list[int] = []
        self.answers: list[bool] = []
        self.turns: list[list[int]] = [[*prompt_ids]]
        self._begins_answer = -1
        if is_whole:
            self._forced.extend(script.to_assistant)
            self._begins_answer = len(self._forced)
            self.turns.append([])

    @property
    def num_forced(self) -> int:
        """How many ids are certain to come next."""
        return len(self._forced)

    def next(self, draw: Callable[[], int]) -> int:
        """Return the next id: a forced one, else what ``draw`` gives."""
        is_drawn = not self._forced
        token = draw() if is_drawn else self._forced.popleft()
        self.ids.append(token)
        self.answers.append(is_drawn and self.is_answer)
        if len(self.ids) == self._begins_answer:
            self.is_answer = True
        if is_drawn and token in self._stop_ids:
            turn = self._script.to_user if self.is_answer else self._script.to_assistant
            self._forced.extend(_behind(turn, token))
            self.is_answer = not self.is_answer
            self.turns.append([])
        elif is_drawn:
            self.turns[-1].append(token)
        return token


def texts_of(turn: Sequence[int], script: Script, tokenizer: Any) -> Iterator[str]:
    """Give every text that a turn may be read as: all of it, and what stands between markers that a model wrote itself."""
    markers = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    heading = tokenizer.decode(script.to_user, skip_special_tokens=True).strip()
    pieces = [[*piece] for is_marker, piece in itertools.groupby(turn, markers.__contains__) if not is_marker]
    for ids in (turn, *pieces):
        text = tokenizer.decode(ids, skip_special_tokens=True).strip()
        yield text
        yield text.removeprefix(heading)


def _behind(turn: Iterable[int], stop: int) -> tuple[int, ...]:
    """Return what a template writes between turns, without the stop id that the model wrote itself."""
    ids = tuple(turn)
    return ids[1:] if ids[:1] == (stop,) else ids
