"""``specframe manifest``: exit status, JSON, and that comparing loads no tensor and, where things are kept, no library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_mutations import MUTATIONS

from specframe import __version__
from specframe.cli import main
from specframe.manifest import collect, loads, open_source, read


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line and return exit status, output and errors."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["specframe", "manifest", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def changed(copy_of, name):
    folder = copy_of("changed")
    MUTATIONS[name].change(folder)
    return folder


def test_create_writes_what_show_reads(run, copy_of, tmp_path):
    """The file is the manifest, whichever way it is asked for."""
    folder, file = copy_of("model"), tmp_path / "m.toml"
    expected = collect(open_source(folder), weights=True)
    code, out, _ = run("create", folder, "-o", file, "--license", "MIT")
    assert (code, read(file).digest, read(file).license) == (0, expected.digest, "MIT")
    assert expected.digest in out
    assert loads(run("create", folder)[1]) == loads(run("create", folder)[1])
    code, out, _ = run("show", file)
    assert code == 0
    assert "id -> the bytes that it adds to a text" in out
    assert json.loads(run("show", file, "--json")[1])["digest"] == expected.digest
    assert json.loads(run("create", folder, "--json")[1])["digest"] == expected.digest
    assert json.loads(run("create", folder, "--dtype", "bfloat16", "--json")[1])["numerics"]["dtype"] == "bfloat16"
    assert run("create", file)[0] == 2


@pytest.mark.parametrize(
    ("name", "code", "verdict"),
    [
        ("two ids swapped", 1, "refuse"),
        ("a shorter context", 0, "slower"),
        ("another RoPE base", 0, "note"),
        ("another template", 1, "refuse"),
    ],
)
def test_check_says_whether_a_draft_fits(run, copy_of, name, code, verdict):
    """Scripts read the exit status, people the table, programs the JSON."""
    folders = copy_of("target"), changed(copy_of, name)
    found, out, _ = run("check", *folders)
    assert found == code
    assert ("does not fit" in out) == (code == 1)
    for column in ("rule", "target", "draft", "verdict", "remedy"):
        assert column in out.splitlines()[0]
    found, out, _ = run("check", *folders, "--json")
    record = json.loads(out)
    assert (found, record["kind"]) == (code, "same")
    assert record["verdict"] == verdict
    assert {"rule", "verdict", "target", "draft", "reason", "remedy"} == record["findings"][0].keys()


def test_check_takes_manifest_files(run, copy_of, tmp_path):
    """A manifest is enough to tell whether a pair fits; the models may be elsewhere."""
    files = tmp_path / "a.toml", tmp_path / "b.toml"
    for folder, file in zip((copy_of("target"), changed(copy_of, "two ids swapped")), files, strict=True):
        run("create", folder, "-o", file)
    assert run("check", files[0], files[0])[0] == 0
    assert run("check", *files)[0] == 1
    record = json.loads(run("check", *files, "--json")[1])
    told = {finding["rule"]: finding["target"] for finding in record["findings"]}
    assert told["vocabulary"] == "272 ids; the first difference is in ids 0 to 1023"
    assert run("check", files[0], tmp_path / "changed")[0] == 1
    bare = files[0].rename(tmp_path / "manifest")
    bare.write_bytes(b"\xef\xbb\xbf" + bare.read_bytes())  # as some editors save it
    assert run("check", bare, bare)[0] == 0


def test_diff_names_the_fields(run, copy_of):
    """Exit status as diff's."""
    folders = copy_of("model"), changed(copy_of, "a shorter context")
    code, out, _ = run("diff", *folders)
    assert (code, out) == (1, "positions.context_limit\n  A  64\n  B  32\n")
    record = json.loads(run("diff", *folders, "--json")[1])
    assert record == {"equal": False, "differences": [{"field": "positions.context_limit", "ours": 64, "theirs": 32}]}
    assert run("diff", folders[0], folders[0])[:2] == (0, "no differences\n")
    assert json.loads(run("diff", folders[0], folders[0], "--json")[1]) == {"equal": True, "differences": []}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "no/such", "no/such"), "'model' must be 'demo', a model folder"),
        (("show", "none.toml"), "manifest 'none.toml' cannot be read"),
        (("create", "missing.gguf"), "must be a GGUF file that can be read"),
        (("check", "a.toml", "b.toml", "--kind", "none"), "'kind' must be same, reduced or bytes"),
        (("create", ""), "'model' must be 'demo', a model folder"),
        (("create", "./no/such"), "there is no such folder"),
        (("create", __file__.removesuffix(".py")), "there is no such folder"),
        (("create", __file__), "it is a file, and no .gguf file"),
        (("create", str(Path(__file__).parent)), "the folder holds no config.json"),
        (("create", "no/such", "-o", "no/such/m.toml"), "'output' must be a file that can be written"),
        (("create", "no/such", "-o", "."), "it is a folder"),
    ],
)
def test_errors_are_one_line_with_the_way_out(run, arguments, told):
    """No traceback for a misspelt name."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err
    code, out, _ = run(*arguments, "--json")
    assert code == 2
    assert told in json.loads(out)["error"]


NO_TENSOR = """
import sys, builtins, io, pathlib
import safetensors, safetensors.torch, safetensors.numpy, torch, transformers
def refuse(*args, **kwargs):
    raise AssertionError("a tensor was loaded")
safetensors.safe_open = safetensors.torch.load_file = safetensors.torch.load = refuse
safetensors.numpy.load_file = safetensors.deserialize = torch.load = refuse
transformers.PreTrainedModel.from_pretrained = transformers.AutoModelForCausalLM.from_pretrained = refuse
torch.Tensor.__new__ = refuse
first = builtins.open
def watch(file, *args, **kwargs):
    if str(file).endswith(".safetensors"):
        raise AssertionError("a weight file was opened")
    return first(file, *args, **kwargs)
builtins.open = io.open = watch
from specframe.cli import main
sys.argv = ["specframe", "--traceback", "manifest", *sys.argv[1:]]
main()
"""


def test_check_on_two_folders_loads_no_tensor_and_then_no_library(copy_of, tmp_path):
    """Comparing two models must not cost loading them; comparing them again must not even cost importing torch."""
    folders = copy_of("target"), changed(copy_of, "two ids swapped")
    surroundings = os.environ | {"SPECFRAME_CACHE_DIR": str(tmp_path / "kept")}
    arguments = [sys.executable, "-c", NO_TENSOR, "check", *map(str, folders)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=surroundings, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    control = [sys.executable, "-c", NO_TENSOR, "create", str(folders[0])]
    refused = subprocess.run(control, capture_output=True, text=True, env=surroundings, check=False)
    assert "AssertionError: a weight file was opened" in refused.stderr  # the trap is set
    assert "id 65 is 'A', 272 ids" in done.stdout
    script = (
        "import sys; from specframe.cli import app; sys.argv[0] = 'specframe'\n"
        "try: app()\n"
        "except SystemExit as done: print(done.code, [m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    arguments = [sys.executable, "-c", script, "manifest", "check", *map(str, folders)]
    again = subprocess.run(arguments, capture_output=True, text=True, env=surroundings, check=True).stdout
    assert again.endswith("1 []\n")
    assert again.removesuffix("1 []\n") == done.stdout


def test_a_model_id_is_found_in_the_hub_cache(copy_of, tmp_path):
    """Of a model id only small files are read, and a refusal downloads no weights."""
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--someone--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    (repository / "snapshots").mkdir()
    folder = copy_of("model")
    expected = collect(open_source(folder), weights=True)
    folder.rename(repository / "snapshots" / revision)
    surroundings = os.environ | {
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
        "SPECFRAME_CACHE_DIR": str(tmp_path / "kept"),
    }
    arguments = [sys.executable, "-m", "specframe.cli", "manifest", "create", "someone/model", "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=surroundings, check=True)
    assert json.loads(done.stdout)["digest"] == expected.digest
    script = "import specframe; print(specframe.load('someone/model').identity.digest)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=surroundings, check=True)
    assert done.stdout == f"{expected.digest}\n"


def test_the_package_is_cheap_to_import():
    """``specframe plugins`` shares the process with these commands."""
    script = (
        "import sys, specframe.cli, specframe.manifest; assert __import__('specframe').__version__ == sys.argv[1]; "
        "print([name for name in ('torch', 'transformers', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, __version__], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
