"""The skeleton of a drafter: what is written, and what is refused. That it works is ``examples/test_third_party.py``'s."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from specframe import skeleton
from specframe.errors import InvalidRequest
from specframe.skeleton import write_skeleton


def test_every_name_is_the_authors(tmp_path: Path) -> None:
    """A name of the example that is left over would clash with the next author's."""
    folder = write_skeleton("best-guess", tmp_path)
    assert folder == tmp_path / "specframe-best-guess"
    files = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    assert set(files) == {"README.md", "pyproject.toml", "specframe_best_guess.py", "test_best_guess.py"}
    assert "class BestGuess:" in files["specframe_best_guess.py"]
    for name, text in files.items():
        assert not any(old in text for old in ("repeat_last", "repeat-last", "RepeatLast")), name
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "specframe-best-guess"
    assert project["entry-points"]["specframe"] == {"best_guess": "specframe_best_guess"}
    assert "specframe certify best_guess" in files["README.md"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """An evening's work is not lost to a command that is run twice."""
    file = write_skeleton("best_guess", tmp_path) / "specframe_best_guess.py"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"specframe-best-guess.*nothing was written"):
        write_skeleton("best-guess", tmp_path)
    assert file.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["", "Best", "best guess", "1st", "best--guess", "-best", "../best", "größe", "none-"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    """Of it no module, class or distribution can be made."""
    with pytest.raises(InvalidRequest, match="must be lower-case words"):
        write_skeleton(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["prompt_lookup", "draft-model", "grammar", "none"])
def test_names_that_are_taken_are_refused(tmp_path: Path, name: str) -> None:
    """Of two drafters of a name neither can be used, and a strategy of the name hides one."""
    with pytest.raises(InvalidRequest, match="must not be taken"):
        write_skeleton(name, tmp_path)
    with pytest.raises(InvalidRequest, match="must not make the class 'True'"):
        write_skeleton("true", tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder above, or a full disk half way: one error, and nothing is left."""
    with pytest.raises(InvalidRequest, match=r"'output' must be a folder that can be written .*No such file"):
        write_skeleton("best", tmp_path / "none")
    real = Path.write_text

    def fill_disk(path: Path, *arguments: str, **options: str) -> int:
        if path.name.startswith("test_"):
            raise OSError(28, "No space left on device")
        return real(path, *arguments, **options)

    monkeypatch.setattr(skeleton.Path, "write_text", fill_disk)
    with pytest.raises(InvalidRequest, match="No space left"):
        write_skeleton("best", tmp_path)
    assert list(tmp_path.iterdir()) == []
