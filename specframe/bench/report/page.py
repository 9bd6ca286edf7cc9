"""The report as one HTML text that needs nothing else: no script, no font, no file, no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import attrs
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specframe._version import __version__
from specframe.bench.gates import METRICS, Verdict
from specframe.bench.metrics import Summary
from specframe.bench.report.answer import Answer, answer
from specframe.bench.report.drawing import Drawn
from specframe.bench.report.study import Study
from specframe.bench.report.svg import inline
from specframe.bench.report.tokens import Sample, drafters_of, samples
from specframe.bench.speed import Ratios, Speed
from specframe.bench.visible import visible

_LONG = 30  # rows; paper is spared of longer tables
_ENDINGS = {"_s": ", s", "_bytes": ", bytes", "_entropy": " entropy, nats"}


class Table(NamedTuple):
    """Rows of named tuples, with the names of their fields."""

    names: tuple[str, ...]
    rows: Sequence[Any]

    @property
    def is_long(self) -> bool:
        """Whether it would fill pages of paper."""
        return len(self.rows) > _LONG

    @property
    def numeric(self) -> set[int]:
        """The columns that hold numbers, or nothing where one would be."""
        columns = enumerate(zip(*self.rows, strict=True))
        return {index for index, column in columns if not any(isinstance(value, str | bool) for value in column)}


class Shown(NamedTuple):
    """A figure on the page; ``svg`` is markup."""

    key: str
    title: str
    reading: str
    missing: str | None
    svg: str
    table: Table


class ArmRow(NamedTuple):
    """An arm over all strata, against plain decoding; times faster, medians over requests."""

    arm: str
    equal_texts: str
    num_other_length: int
    num_failed: int
    speed: float | None
    interval: str
    total_over_total: float | None
    nine_in_ten: float | None
    decoding: float | None
    first_token: float | None
    tokens_per_call: float | None
    acceptance: float | None


class Line(NamedTuple):
    """A strategy's verdict in a stratum."""

    stratum: str
    verdict: Verdict
    speed: float | None
    interval: str
    matched: str


class ArmVerdicts(NamedTuple):
    """A strategy's verdicts, all strata together first."""

    name: str
    lines: tuple[Line, ...]


@attrs.frozen
class Page:
    """All that the page shows."""

    answer: Answer
    complaints: Sequence[str]
    disturbances: Sequence[str]
    facts: Mapping[str, str]
    arms: Table
    verdicts: Sequence[ArmVerdicts]
    figures: Sequence[Shown]
    drafters: Sequence[str]
    samples: Sequence[Sample]
    metrics: Mapping[str, str]
    plan: Mapping[str, str]
    digest: str
    source: str


def page(study: Study, drawn: Iterable[Drawn], *, source: str) -> str:
    """Return the page as HTML; ``source``: the name of the file of results."""
    told = answer(study.summary)
    content = Page(
        answer=told,
        complaints=study.summary.complaints,
        disturbances=study.summary.disturbances,
        facts=_facts(study),
        arms=Table(ArmRow._fields, [_arm(study, name) for name in study.others]),
        verdicts=_verdicts(study),
        figures=[_shown(one) for one in drawn],
        drafters=drafters_of(study),
        samples=samples(study, told.arm) if told.arm is not None else (),
        metrics={gate.metric: METRICS[gate.metric] for gate in study.summary.plan.gates if gate.metric in METRICS},
        plan=_plan(study),
        digest=study.results.header.plan_digest,
        source=source,
    )
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_finalize, trim_blocks=False, keep_trailing_newline=True
    )
    environment.filters |= {"figure": figure, "label": label}
    template = environment.from_string(_text("page.html"))
    return template.render(page=content, css=Markup(_text("page.css")), version=__version__)


def figure(value: float) -> str:
    """Return a number as people read it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:#.4g}"


def label(name: str) -> str:
    """Return the name of a field as the head of a column."""
    name = name.removeprefix("num_").removeprefix("is_")
    for ending, unit in _ENDINGS.items():
        if name.endswith(ending):
            name = name.removesuffix(ending) + unit
    return name.replace("_", " ")


def _finalize(value: Any) -> Any:
    """Make every text visible that is not markup already."""
    return visible(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def _text(name: str) -> str:
    return files("specframe.bench.report").joinpath(name).read_text(encoding="utf-8")


def _shown(drawn: Drawn) -> Shown:
    chart = drawn.chart
    svg = Markup(inline(drawn.svg, chart.key, chart.title, chart.reading)) if drawn.missing is None else Markup()
    return Shown(chart.key, chart.title, chart.reading, drawn.missing, svg, Table(chart.row._fields, drawn.rows))


def _facts(study: Study) -> dict[str, str]:
    summary = study.summary
    plan, machine = summary.plan, summary.machine
    matched = (f"{name}: {study.speed(name).matched}" for name in study.others)
    return {
        "Validity": "not valid, see above" if summary.complaints else "valid: run as planned, on the planned machine",
        "Control": _control(study),
        "Requests": _requests(summary),
        "Equal texts": "; ".join(matched),
        "Target": ", ".join(
            [
                plan.model,
                plan.dtype or "its own dtype",
                f"kernel {plan.kernel}" if plan.kernel else "kernel of the strategies",
            ]
        ),
        "Decoding": "greedy" if plan.sampling is None else "sampled: " + _json(plan.sampling),
        "Machine class": ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in machine.items()),
        "Energy": summary.energy,
        "Events": "; ".join(summary.events) or "none",
        "Plan": study.results.header.plan_digest,
    }


def _control(study: Study) -> str:
    """Tell how far plain decoding is from itself."""
    summary = study.summary
    told = [
        f"{name} {median:.3f} times as fast as {summary.baseline}, which it is once more"
        for name in summary.controls
        if (median := study.speed(name).end_to_end.median) is not None
    ]
    return f"{'not quiet, see above' if summary.disturbances else 'quiet'}: {'; '.join(told)}" if told else "none"


def _requests(summary: Summary) -> str:
    told = f"{summary.num_done} of {summary.num_all} measured"
    if summary.num_split:
        told += f"; {summary.num_split} comparisons of arms were interrupted and taken up by another process"
    return told


def _arm(study: Study, name: str) -> ArmRow:
    cell, speed = study.cell(name), study.speed(name)
    accepted = cell.acceptance
    return ArmRow(
        f"{name} (A/A control)" if name in study.summary.controls else name,
        _equal(speed),
        speed.num_other_length,
        cell.num_failed,
        speed.end_to_end.median,
        _interval(speed.end_to_end),
        speed.end_to_end.total,
        speed.end_to_end.p10,
        speed.decode.median,
        speed.first_token.median,
        accepted.tokens_per_call if accepted is not None else None,
        accepted.share if accepted is not None else None,
    )


def _verdicts(study: Study) -> list[ArmVerdicts]:
    found = []
    for name in study.arms:
        lines = [
            Line(scope, cell.verdict, speed.end_to_end.median, _interval(speed.end_to_end), _equal(speed))
            for scope in study.scopes
            if (cell := study.cell(name, scope)).verdict is not None and (speed := study.speed(name, scope))
        ]
        if lines:
            found.append(ArmVerdicts(name, tuple(lines)))
    return found


def _equal(speed: Speed) -> str:
    return f"{speed.num_matched}/{speed.num_requests}"


def _interval(ratios: Ratios) -> str:
    return f"{ratios.low:.3f} to {ratios.high:.3f}" if ratios.low is not None else "too few"


def _plan(study: Study) -> dict[str, str]:
    plan = study.summary.plan.as_data()
    parts = {"Arms": plan.pop("arms"), "Gates": plan.pop("gates"), "Prompts": plan.pop("items")}
    return {
        **{name: _json(part) for name, part in parts.items()},
        "Everything else of the plan": _json(plan),
        "Versions": _json(study.results.header.versions),
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
