"""Files are data: reading one runs no code, and nothing in the project unpickles."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path for folder in ("specframe", "plugins", "examples", "docs") for path in (ROOT / folder).rglob("*.py")
)
PICKLERS = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
    "pandas",
}
RUNNERS = {"eval", "exec", "__import__"}


def problems(source: str) -> list[str]:
    """Return what a module does that could run what it reads, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [f"{node.lineno}: imports {name}" for name in names if name.partition(".")[0] in PICKLERS]
        if isinstance(node, ast.Call):
            told = ast.unparse(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if told in RUNNERS:
                found.append(f"{node.lineno}: calls {told}")
            if told == "torch.load" and keywords.get("weights_only") != "True":
                found.append(f"{node.lineno}: torch.load without weights_only=True")
            if keywords.get("allow_pickle", "False") != "False" or told.endswith("yaml.load"):
                found.append(f"{node.lineno}: {told} may unpickle")
            if keywords.get("weights_only", "True") != "True":
                found.append(f"{node.lineno}: {told} may unpickle")
            if keywords.get("trust_remote_code") == "True":
                found.append(f"{node.lineno}: {told} trusts by itself")
            if told.endswith(".from_pretrained") and told.partition(".")[0] in (
                "AutoConfig",
                "AutoTokenizer",
                "AutoModelForCausalLM",
            ):
                says = "trust_remote_code" in keywords or None in keywords  # **arguments: those of a Source
                found += [] if says else [f"{node.lineno}: {told} does not say whether it trusts"]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_runs_nothing_that_it_reads(path):
    """A model folder, a cache entry or a checkpoint from somebody else must not be able to run code."""
    assert problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import os, marshal",
        "eval(text)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "numpy.load(file, allow_pickle=True)",
        "yaml.load(text)",
        "AutoConfig.from_pretrained(folder)",
        "AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)",
        "AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, weights_only=False)",
    ],
)
def test_what_could_run_is_found(source):
    """The negative controls."""
    assert problems(source)


SCRIPT = """
import json, sys
from pathlib import Path
from specframe import Receipt, SpecframeError, Strategy
from specframe.manifest import read

READERS = {"strategy": Strategy.from_toml, "manifest": read, "receipt": Receipt.read}
watched = ("exec", "compile", "import", "os.", "subprocess.", "pickle.", "marshal.", "ctypes.", "socket.", "shutil.", "code.")
seen = None

def watch(event, arguments):
    if seen is not None and event.startswith(watched) or event == "open" and seen is not None and "w" in str(arguments[1]):
        seen.append([event, "MARKER" in repr(arguments)])

sys.addaudithook(watch)
events = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    kind = path.name.partition("-")[0]
    seen = []
    try:
        READERS[kind](path)
        told = "read"
    except SpecframeError as error:
        told = type(error).__name__
    events[path.name], seen = [told, seen], None
print(json.dumps(events))
"""
HOSTILE = (
    '__import__("os").system("touch MARKER")',
    "!!python/object/apply:os.system ['touch MARKER']",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}MARKER",
    "$(touch MARKER)`touch MARKER`",
    "cos\\nsystem\\n(S'touch MARKER'\\ntR.",
)


def test_reading_a_file_runs_nothing(tmp_path):
    """What the interpreter does on reading a hostile file is what it does on reading a harmless one, and no more."""
    from models import engine_on, random_table
    from test_fuzz import MANIFEST, STRATEGY, document, toml

    from specframe.manifest import dumps

    receipt = engine_on(random_table()).generate([1, 2], max_new_tokens=2).receipt.to_json()
    texts = {"manifest": (dumps(MANIFEST), "LlamaForCausalLM"), "receipt": (receipt, "length")}
    for kind, (text, word) in texts.items():
        (tmp_path / f"{kind}-0").write_text(text)
        for number, hostile in enumerate(HOSTILE, start=1):
            (tmp_path / f"{kind}-{number}").write_text(text.replace(word, toml(hostile)[1:-1]))
    (tmp_path / "strategy-0").write_text(STRATEGY)
    for number, hostile in enumerate(HOSTILE, start=1):
        drafters = [{"use": hostile, "options": {"model": hostile, hostile: hostile}}]
        (tmp_path / f"strategy-{number}").write_text(
            document({"drafters": drafters, "identity": {"manifest": hostile}})
        )
    script = [sys.executable, "-c", "import sys; exec(sys.stdin.read())", str(tmp_path)]
    done = subprocess.run(script, input=SCRIPT, capture_output=True, text=True, check=True, cwd=tmp_path)
    events = json.loads(done.stdout)
    kinds = {name: {event for event, _ in seen} for name, (_, seen) in events.items()}
    for name, (told, seen) in events.items():
        kind, _, number = name.partition("-")
        assert (told == "read") == (number == "0" or kind == "strategy"), (name, told)
        assert not any(is_marked for _, is_marked in seen), name
        assert kinds[name] <= kinds[f"{kind}-0"] | {"import"}, name
    assert not (tmp_path / "MARKER").exists()
