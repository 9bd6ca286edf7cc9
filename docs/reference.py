"""Parts of the documentation that are made from the code: options, hooks and contracts, the command line, names.

What an option means is read from the docstring of its class, where each stands as ``name``: what it means.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import typer

import specframe
import specframe.testing
from specframe import hookspecs, plugins, request, strategy
from specframe.bench import gates
from specframe.cli import app
from specframe.manifest import RULES
from specframe.manifest.rules import KINDS

_MEANING = re.compile(r"((?:``\w+``(?:, )?)+): (.*?)(?=[;.] ``\w+``(?:, ``\w+``)*:|\. Raises |\.$)")
_ANNOTATION, _UNQUOTED = re.compile(r"(?<=: |> )'([^']*)'"), r"\1"


def part(name: str) -> str:
    """Return a part as Markdown."""
    return PARTS[name]()


def strategy_keys() -> str:
    """Return the keys of a strategy file."""
    tables = {
        "": strategy.Strategy,
        "[length]": strategy.Length,
        "[[drafters]]": strategy.DrafterUse,
        "[identity]": strategy.Identity,
    }
    nested = [f"`{name.strip('[]')}`" for name in tables]
    return _table(
        ["key", "default", "meaning"],
        (
            [f"`{where}` {names}" if where else names, default, meaning]
            for where, kind in tables.items()
            for names, default, meaning in _options(kind)
            if names not in nested
        ),
    )


def shipped_strategies() -> str:
    """Return the strategies that come with specframe; what each is for stands at the top of its file."""
    rows = []
    for name, file in strategy.shipped().items():
        lines = file.read_text(encoding="utf-8").splitlines()
        told = " ".join(line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines))
        found = strategy.Strategy.from_toml(file)
        drafters = _names_of(found.named_drafters)
        rows.append([f"`{name}`", drafters, f"`{found.length.policy}`, at most {found.length.max_tokens}", told])
    return _table(["name", "drafters", "tokens a round", "what it is for"], rows)


def drafter_options() -> str:
    """Return the options of every drafter that comes with specframe."""
    found = [entry for plugin in plugins.load().all for entry in plugin.drafters.values() if _is_own(plugin)]
    return "\n".join(
        f"### `{entry.name}`\n\n{_table(['option', 'default', 'meaning'], _options(entry.options))}" for entry in found
    )


def request_arguments() -> str:
    """Return the arguments of ``generate`` and ``stream``."""
    told = {**_meanings(request.Arguments), **_meanings(specframe.SamplingPolicy)}
    groups = _told_together(request.Arguments.__annotations__, told)
    return _table(["argument", "meaning"], ([_names_of(names), meaning] for meaning, names in groups.items()))


def hooks() -> str:
    """Return both hooks, and what they are given."""
    given = {"specframe_register_drafters": "RegisterDrafter", "specframe_register_grammars": "RegisterGrammar"}
    lines: list[str] = []
    for hook, register in given.items():
        lines += [f"### `{hook}`", _signature(hook, getattr(hookspecs, hook)), _prose(getattr(hookspecs, hook))]
        call = getattr(hookspecs, register).__call__
        lines += [_signature("register", call, is_method=True), _prose(call)]
    return _join(lines)


def drafter_contract() -> str:
    """Return what a drafter implements, and what it is given."""
    names = "Drafter DraftSession Round DraftRequest TargetFacts Commit Needs Features Views TokenView HoldsTensors"
    return _join(line for name in names.split() for line in _contract(getattr(specframe, name)))


def grammar_contract() -> str:
    """Return what a grammar implements."""
    return _join(line for name in ("Grammar", "TextGrammar", "Forced") for line in _contract(getattr(specframe, name)))


def target_contract() -> str:
    """Return what a target implements."""
    names = ("Target", "TargetSession", "Ticket", "Verification")
    return _join(line for name in names for line in _contract(getattr(specframe, name)))


def command_line() -> str:
    """Return every command with its arguments and options."""
    root: Any = typer.main.get_command(app)
    return _join(_commands(root, typer.Context(root, info_name="specframe")))


def public_names() -> str:
    """Return what the public modules offer, by name."""
    return _join(
        line
        for module in (specframe, specframe.testing)
        for line in (f"## `{module.__name__}`", _table(["name", "what it is"], _names(module)))
    )


def rules() -> str:
    """Return the rules that a draft model is checked by."""
    rows = []
    for rule in RULES:
        kinds = "all" if rule.kinds == KINDS.keys() else ", ".join(kind for kind in KINDS if kind in rule.kinds)
        field = rule.field if rule.field == rule.other else f"{rule.field} / {rule.other}"
        rows.append([rule.name, field, kinds, rule.severity, rule.reason, rule.remedy])
    return _table(["rule", "field", "drafters", "severity", "reason", "remedy"], rows)


def default_gates() -> str:
    """Return the gates of a comparison, with why each is where it is."""
    return _table(
        ["metric", "which is", "must be", "otherwise", "why"],
        (
            [f"`{gate.metric}`", gates.METRICS[gate.metric], gate.bound, gate.otherwise, gate.reason]
            for gate in gates.DEFAULT_GATES
        ),
    )


PARTS: dict[str, Callable[[], str]] = {
    "command_line": command_line,
    "default_gates": default_gates,
    "drafter_contract": drafter_contract,
    "drafter_options": drafter_options,
    "grammar_contract": grammar_contract,
    "hooks": hooks,
    "public_names": public_names,
    "request_arguments": request_arguments,
    "rules": rules,
    "shipped_strategies": shipped_strategies,
    "strategy_keys": strategy_keys,
    "target_contract": target_contract,
}


def _is_own(plugin: plugins.Plugin) -> bool:
    return plugin.distribution == "specframe"


def _options(kind: type[Any]) -> Iterable[list[str]]:
    """Yield names, defaults and meaning of the fields of an attrs class."""
    defaults = {field.name: _default(field.default) for field in attrs.fields(kind)}
    for meaning, names in _told_together(defaults, _meanings(kind)).items():
        shown = [defaults[name] for name in names]
        yield [_names_of(names), shown[0] if len({*shown}) == 1 else ", ".join(shown), meaning]


def _told_together(names: Iterable[str], told: Mapping[str, str]) -> Mapping[str, list[str]]:
    """Return names by their meaning, in order. Raises ``KeyError`` for a name that its docstring does not tell."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(told[name], []).append(name)
    return groups


def _names_of(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _meanings(kind: type[Any]) -> Mapping[str, str]:
    """Return what each name means by the docstring of its class; names that it tells together share a meaning."""
    found: dict[str, str] = {}
    for names, meaning in _MEANING.findall(" ".join(inspect.cleandoc(kind.__doc__ or "").split())):
        found |= dict.fromkeys(re.findall(r"\w+", names), _markdown(meaning))
    return found


def _default(default: Any) -> str:
    if default is attrs.NOTHING:
        return "required"
    factory = getattr(default, "factory", None)
    value = factory() if factory is not None else default
    if value is None:
        return "not set"
    if isinstance(value, Sequence | Mapping) and not isinstance(value, str):
        return "`[]`" if isinstance(value, Sequence) else "`{}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{str(value).lower()}`"


def _contract(kind: type[Any]) -> Iterable[str]:
    """Yield a heading, the docstring, and every public member with its own."""
    yield f"### `{kind.__name__}`"
    yield _prose(kind)
    fields = _fields(kind)
    if fields:
        yield "\n".join(f"- `{field}`" for field in fields)
    for name, member in vars(kind).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        if isinstance(member, property):
            returned = inspect.signature(member.fget).return_annotation if member.fget else "Any"
            yield f"**`{name}: {returned}`**"
        else:
            yield _signature(name, member, is_method=True)
        yield _prose(member)


def _fields(kind: type[Any]) -> list[str]:
    """Return the fields of an attrs class or a named tuple, as they are declared."""
    if attrs.has(kind):
        defaults = {field.name: field.default for field in attrs.fields(kind)}
    elif hasattr(kind, "_fields"):
        defaults = {name: kind._field_defaults.get(name, attrs.NOTHING) for name in kind._fields}
    else:
        return []
    # A named tuple keeps what it was declared with as a reference to be looked up.
    annotations = {name: getattr(told, "__forward_arg__", told) for name, told in kind.__annotations__.items()}
    return [
        f"{name}: {annotations[name]}" + ("" if default is attrs.NOTHING else f" = {default!r}")
        for name, default in defaults.items()
    ]


def _signature(name: str, function: Callable[..., Any], *, is_method: bool = False) -> str:
    signature = inspect.signature(function)
    if is_method:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return f"**`{name}{_ANNOTATION.sub(_UNQUOTED, str(signature))}`**"


def _prose(told: Any) -> str:
    return _markdown(inspect.getdoc(told) or "")


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _commands(command: Any, context: Any) -> Iterable[str]:
    groups = command.list_commands(context) if hasattr(command, "commands") else []
    yield f"{'##' if context.parent is None or groups or context.parent.parent is None else '###'} `{context.command_path}`"
    yield _cell(command.help or "", is_prose=True)
    yield f"`{' '.join([context.command_path, *command.collect_usage_pieces(context)])}`"
    by_panel: dict[str, list[list[str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            panel = getattr(parameter, "rich_help_panel", None) or f"{parameter.param_type_name}s".capitalize()
            by_panel.setdefault(panel, []).append([f"`{record[0]}`", record[1]])
    for panel, rows in by_panel.items():
        yield _table([panel.lower() if panel in ("Arguments", "Options") else panel, "meaning"], rows)
    for name in groups:
        inner = command.commands[name]
        yield from _commands(inner, typer.Context(inner, info_name=name, parent=context))


def _names(module: Any) -> Iterable[list[str]]:
    for name in module.__all__:
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        told = inspect.getdoc(value if callable(value) or isinstance(value, type) else type(value)) or ""
        yield [f"`{name}`", _markdown(_first_sentence(told))]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.partition("\n\n")[0].split()))[0]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str, *, is_prose: bool = False) -> str:
    return text if is_prose else text.replace("\n", " ").replace("|", "\\|")


def _join(lines: Iterable[str]) -> str:
    return "".join(f"{line.strip()}\n\n" for line in lines if line.strip())
