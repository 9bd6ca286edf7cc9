"""One generation: the round loop. Propose, forward, verify, commit, emit.

Holds the state of one request and ties the parts together; every decision is another module's. Knows no drafter by name or
kind, and no model.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import torch

from specframe.distribution import NotADistribution
from specframe.drafting import Drafting, Terms
from specframe.drawing import DraftContext
from specframe.errors import TargetError, described
from specframe.grammar import read_only
from specframe.lengths import LengthPolicy, make_policy
from specframe.policy import Pipeline, top_choices
from specframe.prefix import Prefix
from specframe.processors import is_pure, is_replayable
from specframe.proposal import Commit, Drafter, DraftRequest, Proposal, Round
from specframe.random import CounterRandom, Random
from specframe.records import Event, RoundRecord
from specframe.request import Request
from specframe.rows import CertainRow, ChosenRow, Row
from specframe.stop import Stopper
from specframe.strategy import Strategy
from specframe.target import SINGLE, Kernel, Target, Ticket, Verification
from specframe.text import TextDecoder, TokenBytes, decode
from specframe.verify import Coupled, Greedy, Residual, Rule, Verdict, verify

_logger = logging.getLogger("specframe")

_MOST_RESERVED = 4096  # tokens of a budget that buffers are made for at once; beyond, they grow


class Piece(NamedTuple):
    """What one round emitted. ``text`` may lag behind ``token_ids``: a character or a possible stop string is held."""

    text: str
    token_ids: tuple[int, ...]


class Generation:
    """The state of one request on a target."""

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter],
        strategy: Strategy,
        request: Request,
        *,
        kernel: Kernel = SINGLE,
        request_id: int,
        table: TokenBytes | None,
        terms: Mapping[str, Terms] = {},
        random: Random | None = None,
        lengths: LengthPolicy | None = None,
        clock: Callable[[], float] = time.perf_counter,
        account: Callable[[], Mapping[str, Any]] = dict,
        keep_entropies: bool = False,
        debug: bool = False,
    ) -> None:
        this = weakref.proxy(self)  # in a cycle it would hold the model until the collector comes
        self.request, self.request_id, self.kernel = request, request_id, kernel
        self._clock, self._account, self._keep_entropies = clock, account, keep_entropies
        self._target, self._strategy, self._debug, self._table = target, strategy, debug, table
        self._drafters, self._terms = drafters, terms
        facts = target.facts
        self.token_ids: list[int] = []
        self.log_probs: list[float] = []
        self.records: list[RoundRecord] = []
        self.text = ""
        self._events: list[Event] = []
        self._drafting: Drafting | None = None
        self._prefix = Prefix(request.prompt_ids, request.grammar, facts.device)
        self._pipeline = Pipeline(
            request.policy,
            vocab_size=facts.vocab_size,
            stop_ids=request.stop_ids,
            num_prompt=len(request.prompt_ids),
            device=facts.device,
        )
        self._random = random or CounterRandom(request.seed or 0, request.sample)
        self.stopper = Stopper(
            budget=request.budget,
            stop_ids=request.stop_ids,
            stop_strings=request.stop_strings,
            decoder=TextDecoder(table) if table is not None else None,
            criterion=(lambda token: this._criterion(token)) if request.criterion is not None else None,
        )
        if request.budget == 0:
            self.stopper.end("length")
        elif self._prefix.is_complete(len(request.prompt_ids)):  # the grammar's only text is the empty one
            self.stopper.end("stop")
        self._lengths = lengths or make_policy(
            strategy.length.policy,
            is_flat=kernel.width is not None,
            row_costs=target.row_costs if drafters else tuple,  # without any no length is asked for
            cheap=frozenset(name for name, term in terms.items() if term.is_cheap),
        )
        self.length_policy = self._lengths.name
        self._max_room = strategy.length.max_tokens
        if kernel.width is not None:
            self._max_room = min(self._max_room, kernel.width - 1)
        if kernel.note:
            self._events.append(Event(0, "", kernel.note, "kernel-lowered"))
        if drafters and not all(map(is_replayable, request.policy.processors)):
            self._max_room = 0
            message = "no speculation: a logits processor is neither declared pure (specframe.pure) nor can be restored"
            self._events.append(Event(0, "", message, "no-speculation"))
        self._stateful: list[Any] = [processor for processor in request.policy.processors if not is_pure(processor)]
        self._draft_context = DraftContext(self._prefix, self._pipeline, lambda: this.rule, facts.device)
        expected = len(request.prompt_ids) + min(request.budget, _MOST_RESERVED) + self._max_room + 1
        self._session = target.open(request_id, max_tokens=expected, kernel=kernel)
        self.held: Mapping[str, Any] = {}

    def emitted_text(self) -> str:
        """Return the text of all emitted ids, with what was held for a stop string that did not come.

        Without what was held where the tokenizer fails.
        """
        try:
            return decode(self._table, self.token_ids) if self._table is not None else ""
        except TargetError:
            return self.text

    @property
    def is_done(self) -> bool:
        """Whether the output is complete."""
        return self.stopper.is_done

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened beside tokens, in the order of rounds."""
        drafters = self._drafting.events if self._drafting is not None else []
        return tuple(sorted([*self._events, *drafters], key=lambda event: event.round_id))

    @torch.inference_mode()
    def step(self) -> Piece:
        """Run one round. Raises ``TargetError``; nothing of the round is then emitted."""
        # One ticket for the whole round: a cancel in the middle of it makes it stale.
        self._ticket = Ticket(self.request_id, len(self.records), self._session.epoch)
        marks = [self._clock()]
        proposal = self._propose()
        marks.append(self._clock())
        certain = self._certain_rows(proposal)
        verification = self._forward(proposal, num_skipped=len(certain))
        marks.append(self._clock())
        row_at = self._fetch(verification.logits, proposal, certain)
        marks.append(self._clock())
        verdict = self._verify(row_at, proposal)
        marks.append(self._clock())
        new_ids = self._commit(proposal, verdict)
        marks.append(self._clock())
        piece, log_probs = self._piece(new_ids, verification)
        marks.append(self._clock())
        self._record(proposal, verdict, verification.num_forwards, len(new_ids), marks)
        return self._emit(piece, log_probs)

    def close(self, *, keeps_prefix: bool = True) -> None:
        """Roll back what is provisional and end the drafters' sessions and the target's; account for memory before.

        ``keeps_prefix``: whether the target's cache may serve later requests, as far as the request lets it. A target whose
        session cannot be closed has its cache forgotten, and an event says so: what was emitted stands.
        """
        try:
            self.held = self._account()
            if self._drafting is not None:
                self._drafting.start_round(len(self.records))
                self._drafting.close()
        finally:
            keeps_prefix = keeps_prefix and self.request.keep_prefix
            try:
                self._session.close()
            except Exception as error:
                _logger.warning("the target's session could not be closed; its cache is forgotten", exc_info=error)
                message = f"the target's cache was forgotten: close raised {type(error).__name__}"
                self._events.append(Event(len(self.records), "", message, "cache-forgotten"))
                keeps_prefix = False
            if not keeps_prefix:
                self._target.reset()

    def _propose(self) -> Proposal:
        proposal = Proposal()
        if self._drafting is not None:
            self._drafting.start_round(len(self.records))
        room = self._room() if self.records else 0
        if room <= 0 or not self._drafters:
            return proposal
        round = Round(
            self._draft_context,
            proposal,
            index=len(self.records),
            room=room,
            vocab_size=self._target.facts.vocab_size,
            stop_ids=self.request.stop_ids,
        )
        drafting = self._opened_drafting()
        # Draft draws call the caller's processors once more than plain decoding does.
        states = [processor.snapshot() for processor in self._stateful]
        drafting.propose(round, proposal)
        for processor, state in zip(self._stateful, states, strict=True):
            processor.restore(state)
        return proposal

    def _room(self) -> int:
        """Return how many tokens this round may propose: the extra token keeps a place in the budget and in the context."""
        limits = (self._target.facts.context_limit, self._target.facts.speculation_limit)
        rooms = [limit - len(self._prefix) for limit in limits if limit is not None]
        if (most_ids := self.kernel.most_ids(self._session.num_committed)) is not None:
            rooms.append(most_ids - 1)
        return min(self._max_room, self.stopper.remaining - 1, *rooms)

    def _certain_rows(self, proposal: Proposal) -> list[CertainRow]:
        """Return the rows at the start of a proposal whose token the grammar alone decides; they need no logits."""
        rows: list[CertainRow] = []
        if self.request.log_probs or self._pipeline.processors:
            return rows
        start, vocab_size = len(self._prefix) - len(proposal), self._target.facts.vocab_size
        for position in range(start, len(self._prefix)):
            token = self._prefix.certain(position, vocab_size)
            if token is None:
                break
            rows.append(CertainRow(token, position, vocab_size))
        return rows

    def _forward(self, proposal: Proposal, *, num_skipped: int) -> Verification:
        if not self.records:
            return self._session.prefill(self._ticket, self.request.prompt_ids)
        pending = self._prefix.ids[len(self._prefix) - len(proposal) - 1]
        verification = self._session.verify_linear(self._ticket, pending, proposal.ids, num_skipped=num_skipped)
        if verification.note and self.kernel.is_certified:
            self.kernel = self.kernel._replace(
                is_certified=False, note=f"{verification.note}; the class is token-exact"
            )
            self._events.append(Event(len(self.records), "", self.kernel.note, "kernel-lowered"))
        return verification

    def _fetch(
        self, logits: torch.Tensor, proposal: Proposal, certain: Sequence[CertainRow]
    ) -> Callable[[int], Row | ChosenRow | CertainRow]:
        """Return what verification reads a row from. This is where the host waits for a device, once.

        But for rows that processors change on the device: those are waited for as they are read.
        """
        start = len(self._prefix) - len(proposal)
        if not self._pipeline.processors and not (self.request.policy.is_greedy and self._prefix.grammar is None):
            logits = logits.cpu()  # all rows in one transfer; they are processed there
        # On the host rows are chosen one by one, as far as they count; elsewhere all at once, in one synchronisation.
        is_one_transfer = (
            self.request.policy.is_greedy and self._pipeline.is_plain(self._prefix) and logits.device.type != "cpu"
        )
        choices = top_choices(logits) if is_one_transfer else []

        def row_at(index: int) -> Row | ChosenRow | CertainRow:
            if index < len(certain):
                return certain[index]
            if is_one_transfer:
                return ChosenRow(choices[index], start + index)
            return Row(logits[index - len(certain)], self._pipeline, self._prefix, start + index)

        return row_at

    def _verify(self, row_at: Callable[[int], Row | ChosenRow | CertainRow], proposal: Proposal) -> Verdict:
        try:
            return verify(row_at, proposal, self.rule, self._push)
        except NotADistribution as error:
            row = error.row or 0
            position = len(self._prefix) - len(proposal) + row
            raise TargetError(
                f"request {self.request_id}: the target's row for position {position} cannot be used: {error}",
                round_id=len(self.records),
                row=row,
            ) from error

    def _push(self, token: int) -> bool:
        """Take note of one more token of the output, which the prefix already holds; return whether it is the last."""
        self.stopper.push(token)
        length = len(self.request.prompt_ids) + self.request.budget - self.stopper.remaining
        if not self.is_done and self._prefix.is_complete(length):
            self.stopper.end("stop")
        return self.is_done

    def _commit(self, proposal: Proposal, verdict: Verdict) -> tuple[int, ...]:
        start = len(self._prefix) - len(proposal)
        num_pending = verdict.token is not None
        if self.records:
            # A proposal that ends the output stays out, as in plain decoding, so that the next request finds the same cache.
            self._session.commit(self._ticket, verdict.num_accepted + num_pending)
        self._prefix.truncate(start + verdict.num_accepted)
        if verdict.token is not None:
            self._prefix.push(verdict.token)
            self._push(verdict.token)
        if self._debug:
            self._session.check(self._prefix.ids[:-1])
        new_ids = tuple(self._prefix.ids[start:])
        limit = self._target.facts.context_limit
        if limit is not None and self._session.num_committed >= limit and not self.is_done:
            self.stopper.end("length")
            message = f"stopped at the model's context limit of {limit} tokens"
            self._events.append(Event(len(self.records), "", message, "context-limit"))
        if self._drafting is not None:
            self._drafting.commit(Commit(new_ids, start, len(proposal), verdict.num_accepted))
        return new_ids

    def _piece(self, new_ids: tuple[int, ...], verification: Verification) -> tuple[Piece, list[float]]:
        """Return what the round emits, with log-probabilities if they are asked for."""
        log_probs: list[float] = []
        if self.request.log_probs:
            rows = torch.log_softmax(verification.logits[: len(new_ids)].double(), dim=-1)
            log_probs = rows.gather(-1, torch.tensor(new_ids, device=rows.device)[:, None])[:, 0].tolist()
        return Piece(self.stopper.take_text(), new_ids), log_probs

    def _record(
        self, proposal: Proposal, verdict: Verdict, num_forwards: int, num_emitted: int, marks: Sequence[float]
    ) -> None:
        counts = {
            "num_evaluated": verdict.num_evaluated,
            "num_accepted": verdict.num_accepted,
            "num_kept": num_emitted - (verdict.token is not None),
        }
        shares = self._drafting.shares(proposal, **counts) if self._drafting is not None else []
        margins = [margin for margin in verdict.margins if margin is not None]
        self.records.append(
            RoundRecord(
                round_id=len(self.records),
                drafters=tuple(shares),
                num_forwards=num_forwards,
                num_proposed=len(proposal),
                **counts,
                num_emitted=num_emitted,
                min_margin=min(margins, default=None),
                num_rounding=verdict.num_rounding,
                draft_s=marks[1] - marks[0],
                forward_s=marks[2] - marks[1],
                sync_s=marks[3] - marks[2],
                decide_s=marks[4] - marks[3],
                commit_s=marks[5] - marks[4],
                emit_s=marks[6] - marks[5],
            )
        )
        self._lengths.learn(self.records[-1])

    def _emit(self, piece: Piece, log_probs: list[float]) -> Piece:
        # Nothing fails from here on: what is counted as emitted is what the reader gets.
        self.token_ids += piece.token_ids
        self.log_probs += log_probs
        self.text += piece.text
        return piece

    @property
    def exactness(self) -> str:
        """What is promised of the output against plain decoding: ``bitwise``, ``token-exact`` or ``distribution-exact``."""
        if not self.request.policy.is_greedy and self._strategy.verifier == "residual":
            return "distribution-exact"
        return "bitwise" if self.kernel.is_certified else "token-exact"

    @property
    def rule(self) -> Rule:
        """The verification rule of the current round."""
        if self.request.policy.is_greedy:
            return Greedy()
        if self._strategy.verifier == "coupled":
            return Coupled(self._random)
        return Residual(self._random, len(self.records))

    def _opened_drafting(self) -> Drafting:
        """Return the draft sessions, opened when first needed and told the ids so far."""
        if self._drafting is None:
            request = DraftRequest(
                prompt_ids=self.request.prompt_ids,
                facts=self._target.facts,
                policy=attrs.evolve(self.request.policy, processors=()),  # the core applies them, whoever proposes
                stop_ids=self.request.stop_ids,
                grammar=read_only(self.request.grammar) if self.request.grammar is not None else None,
            )
            round_id, num_prompt = len(self.records), len(request.prompt_ids)
            self._drafting = Drafting(
                self._lengths,
                round_id=round_id,
                mode=self._strategy.mode,
                terms=self._terms,
                clock=self._clock,
                keep_entropies=self._keep_entropies,
            )
            self._drafting.open(self._drafters, request)
            self._drafting.commit(Commit(request.prompt_ids, 0))
            self._drafting.commit(Commit(tuple(self._prefix.ids[num_prompt:]), num_prompt))
        return self._drafting

    def _criterion(self, token: int) -> bool:
        length = len(self.request.prompt_ids) + self.request.budget - self.stopper.remaining
        assert self.request.criterion is not None
        try:
            return bool(self.request.criterion(self._prefix.tensor(length)))
        except Exception as error:
            raise TargetError(f"the stopping criterion failed ({described(error)})") from error
