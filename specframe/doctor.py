"""What a bug report needs to know of an installation: versions, devices, plugins, kernel probes, caches.

Loads no model. Each part that fails is told as a problem, and the others are told too: a broken installation is what this is
for. Names no folder, user or machine unless paths are asked for.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from specframe import plugins as plugin_loader
from specframe._version import __version__
from specframe.demo import CACHE_VARIABLE, cache_folder, demo_file
from specframe.errors import MissingPackage, PluginError, described
from specframe.manifest.remember import remembered
from specframe.strategy import shipped

DISTRIBUTION = "specframe"
_UNREPORTED_EXTRAS = {"dev"}
_GIB = 2**30
# Quoted first: a quoted path may hold spaces.
_PATHS = re.compile(r"""(["'])(?:~|[A-Za-z]:)?[\\/].*?\1|(?<![\w.<>/\\])(?:~|[A-Za-z]:)?[\\/][^\s"',;()<>]*""")


class Problems(list[str]):
    """What is wrong, in words."""

    @contextlib.contextmanager
    def noting(self, part: str) -> Iterator[None]:
        """Note what a part raises, and go on."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self.append(f"{part}: {described(error)}")


def examine(*, paths: bool = False) -> dict[str, Any]:
    """Return the report as plain data; ``problems`` is empty where nothing is wrong.

    ``paths``: name folders too, and leave the texts of errors as they are.
    """
    problems = Problems()
    parts: dict[str, Callable[[], Any]] = {
        "packages": lambda: _packages(problems),
        "devices": _devices,
        "plugins": lambda: _plugins(problems),
        "strategies": lambda: _strategies(problems),
        "kernel_probes": _kernel_probes,
        "caches": lambda: _caches(problems, paths=paths),
        "demo": _demo,
    }
    report: dict[str, Any] = {
        "specframe": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.machine()}",
    }
    for name, examine_part in parts.items():
        with problems.noting(name):
            report[name] = examine_part()
    report["problems"] = list(problems)
    return report if paths else _without_paths(report)


def _packages(problems: Problems) -> dict[str, Any]:
    """Return what specframe requires, by package; an extra's package may be missing."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        problems.append("specframe is on the path and not installed, so its plugins are not found; pip install it")
        return {}
    packages: dict[str, Any] = {}
    extras = sorted({*(distribution.metadata.get_all("Provides-Extra") or ())} - _UNREPORTED_EXTRAS)
    for requirement in map(Requirement, distribution.requires or ()):
        extra = _needed_by(requirement, extras)
        if extra is None:
            continue
        required, installed = str(requirement.specifier), _version(requirement.name)
        packages[requirement.name] = {"installed": installed, "required": required, "extra": extra or None}
        if installed is None and not extra:
            problems.append(f"{requirement.name} {required} is required and not installed")
        elif installed is not None and not requirement.specifier.contains(installed, prereleases=True):
            problems.append(f"{requirement.name} {required} is required (installed: {installed})")
    return packages


def _needed_by(requirement: Requirement, extras: Sequence[str]) -> str | None:
    """Return the extra that a requirement is of, an empty text for everybody's, None for one that is not for this machine."""
    marker = requirement.marker
    if marker is None:
        return ""
    return next((extra for extra in ("", *extras) if marker.evaluate({"extra": extra})), None)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    import psutil
    import torch

    cuda = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(psutil.virtual_memory().total / _GIB, 1),
        "cuda": [f"{device.name}, {device.total_memory / _GIB:.1f} GiB" for device in cuda],
        "cuda_version": torch.version.cuda,
        "mps": torch.backends.mps.is_available(),
    }


def _plugins(problems: Problems) -> list[dict[str, Any]]:
    loaded = plugin_loader.load()
    for plugin in loaded.all:
        if plugin.error is not None:
            problems.append(f"{plugin} is broken: {described(plugin.error)}")
    for find, names in ((loaded.drafter, _names(loaded, "drafters")), (loaded.grammar, _names(loaded, "grammars"))):
        for name in names:
            try:
                find(name)
            except PluginError as error:  # two plugins claim it
                problems.append(str(error))
    return [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "state": "disabled" if plugin.is_disabled else "broken" if plugin.error is not None else "loaded",
            "drafters": sorted(plugin.drafters),
            "grammars": sorted(plugin.grammars),
        }
        for plugin in loaded.all
    ]


def _names(loaded: plugin_loader.Plugins, kind: str) -> list[str]:
    return sorted({name for plugin in loaded.all for name in getattr(plugin, kind)})


def _strategies(problems: Problems) -> list[str]:
    names = sorted(shipped())
    if not names:
        problems.append("the strategies that come with specframe are missing; install it again")
    return names


def _kernel_probes() -> dict[str, Any]:
    """Return the verdicts on block kernels that this machine's cache folder remembers, for whatever models."""
    verdicts = remembered("kernel-probe")
    return {
        "bitwise": sum(verdict["is_bitwise"] for verdict in verdicts),
        "not_bitwise": sum(not verdict["is_bitwise"] and not verdict["wrong"] for verdict in verdicts),
        "wrong": sum(bool(verdict["wrong"]) for verdict in verdicts),
    }


def _caches(problems: Problems, *, paths: bool) -> dict[str, Any]:
    from huggingface_hub import constants

    folder = cache_folder()
    caches: dict[str, Any] = {
        "specframe": {"chosen_by": _chosen_by(CACHE_VARIABLE), **_folder_facts(folder)},
        "huggingface": {
            "chosen_by": _chosen_by("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"),
            "exists": Path(constants.HF_HUB_CACHE).is_dir(),
        },
    }
    if not caches["specframe"]["is_writable"]:
        problems.append(f"the cache folder cannot be written; set {CACHE_VARIABLE} to one that can")
    if paths:
        caches["specframe"]["path"] = str(folder)
        caches["huggingface"]["path"] = str(constants.HF_HUB_CACHE)
    return caches


def _chosen_by(*variables: str) -> str:
    return next((name for name in variables if os.environ.get(name)), "default")


def _folder_facts(folder: Path) -> dict[str, Any]:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        "exists": folder.is_dir(),
        "is_writable": nearest.is_dir() and os.access(nearest, os.W_OK),
        "num_models": sum(path.is_dir() and (path / "config.json").is_file() for path in folder.glob("*")),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6),
    }


def _demo() -> str:
    try:
        demo_file()
    except MissingPackage:
        return "not installed"
    return "installed"


def as_text(report: Mapping[str, Any]) -> str:
    """Return a report as lines to read; a part that failed is missing here and stands among the problems."""
    lines = [f"specframe {report['specframe']}, Python {report['python']}, {report['system']}"]
    for title, tell in (
        ("packages", _package_lines),
        ("devices", _fact_lines),
        ("plugins", _plugin_lines),
        ("strategies", lambda names: [", ".join(names)]),
        ("kernel_probes", _fact_lines),
        ("caches", lambda caches: [f"{name}: {_facts(facts)}" for name, facts in caches.items()]),
        ("demo", lambda state: [f"weights {state}"]),
        ("problems", lambda problems: problems or ["none"]),
    ):
        if title in report:
            lines += [title.replace("_", " "), *(f"  {line}" for line in tell(report[title]))]
    return "\n".join(lines)


def _package_lines(packages: Mapping[str, Any]) -> list[str]:
    return [
        f"{name:<16} {facts['installed'] or '(none)':<14} {facts['required']}"
        + (f"  for specframe[{facts['extra']}]" if facts["extra"] else "")
        for name, facts in packages.items()
    ]


def _plugin_lines(plugins: list[dict[str, Any]]) -> list[str]:
    return [
        f"{plugin['name']:<16} {plugin['state']:<9} {plugin['distribution']} {plugin['version']}: "
        + _facts({kind: ", ".join(plugin[kind]) for kind in ("drafters", "grammars") if plugin[kind]})
        for plugin in plugins
    ]


def _fact_lines(facts: Mapping[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' '):<16} {_told(value)}" for name, value in facts.items()]


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_told(value)}" for name, value in facts.items())


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _without_paths(value: Any) -> Any:
    """Return plain data with every path in its texts replaced."""
    if isinstance(value, Mapping):
        return {key: _without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    return hide_paths(value) if isinstance(value, str) else value


def hide_paths(text: str) -> str:
    """Return a text with ``<path>`` in place of every path.

    Folders that are known are found first, whatever characters they hold; of others, what looks like an absolute path.
    """
    known = {os.path.expanduser("~"), os.environ.get("PWD", ""), sys.prefix, str(cache_folder()), *sys.path}
    for folder in sorted(filter(os.path.isabs, known), key=len, reverse=True):
        if len(folder) > 1:
            text = text.replace(folder, "~")
    return _PATHS.sub("<path>", text)
