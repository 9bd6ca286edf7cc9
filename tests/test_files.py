"""Files are whole or not there, under any name that the system takes."""

from __future__ import annotations

import os
import resource
import signal
import stat
import threading
from pathlib import Path

import pytest

from specframe import InvalidRequest
from specframe.files import check_writable, save, write_whole


def test_a_name_may_be_as_long_as_names_get(tmp_path):
    """What is written first has a name of its own, which must not be longer."""
    path = tmp_path / ("x" * 255)
    write_whole(path, "text")
    assert path.read_text() == "text"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_the_rights_that_the_user_wants(tmp_path):
    """A new one by the umask, which is never another one meanwhile; one that is replaced keeps its own."""
    seen, is_over = set(), threading.Event()

    def watch():
        with open("/proc/self/status") as status:
            while not is_over.is_set():
                status.seek(0)
                seen.update(line for line in status if line.startswith("Umask"))

    before = os.umask(0o027)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(200):
            write_whole(tmp_path / "new", "text")
            assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
            (tmp_path / "new").unlink()
        write_whole(tmp_path / "old", "text")
        os.chmod(tmp_path / "old", 0o604)
        write_whole(tmp_path / "old", "other")
        assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o604
    finally:
        os.umask(before)
        is_over.set()
        watcher.join()
    assert seen == {"Umask:\t0027\n"}


def test_a_disk_that_is_full_half_way_leaves_the_old_file(tmp_path):
    """A part of the text was written, and there is no place for the rest."""
    path = tmp_path / "run.json"
    save(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(InvalidRequest, match=r"'output' must be a file that can be written .*too large"):
            save(path, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_can_be_written_where_its_folder_cannot(monkeypatch):
    """``--receipt /dev/stdout``: only root may write into /dev."""
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/dev")
    check_writable(Path("/dev/null"))
    with pytest.raises(InvalidRequest, match="its folder is not there or cannot be written"):
        check_writable(Path("/dev/none"))
