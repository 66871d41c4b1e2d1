"""The modes of files and folders in a local store, for each umask and each way to write."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import LocalBackend


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    mask = os.umask(request.param)
    yield request.param
    os.umask(mask)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return a folder that every user may enter."""
    top = tmp_path / "top"
    top.mkdir()
    top.chmod(0o755)
    return top


def _modes(top: Path) -> dict[str, int]:
    return {
        path.relative_to(top).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in top.rglob("*")
    }


def _write_in_every_way(backend: LocalBackend) -> None:
    backend.create("runs/1.json", b"{}")
    backend.replace("flusher.json", b"{}")
    backend.replace("flusher.json", b"{ }")
    with backend.open_output("segments/1/a.arrow") as output:
        output.write(b"rows")


@pytest.mark.usefixtures("umask")
def test_new_folders_and_files_are_private(top: Path) -> None:
    _write_in_every_way(LocalBackend(top / "a" / "log"))
    assert _modes(top) == {
        "a": 0o700,
        "a/log": 0o700,
        "a/log/runs": 0o700,
        "a/log/runs/1.json": 0o600,
        "a/log/flusher.json": 0o600,
        "a/log/segments": 0o700,
        "a/log/segments/1": 0o700,
        "a/log/segments/1/a.arrow": 0o600,
    }


@pytest.mark.usefixtures("umask")
def test_unfinished_file_is_private(top: Path) -> None:
    """The hidden file has the rows before the object has its name."""
    with LocalBackend(top / "log").open_output("a.arrow") as output:
        output.write(b"rows")
        assert set(_modes(top / "log").values()) == {0o600}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("options", "folders", "files"), [(0o2770, 0o2770, 0o640), (0o2757, 0o2750, 0o640)]
)
def test_folder_with_setgid_is_shared_with_its_group(
    top: Path, options: int, folders: int, files: int
) -> None:
    """The group has the rights that it has in the outer folder; other users have none."""
    top.chmod(options)
    _write_in_every_way(LocalBackend(top / "log"))
    for path in (top / "log").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (folders if path.is_dir() else files), path
        assert path.stat().st_gid == top.stat().st_gid


def test_group_without_access_to_a_folder_reads_nothing(top: Path) -> None:
    top.chmod(0o2700)
    LocalBackend(top / "log").create("log.json", b"{}")
    assert set(_modes(top).values()) <= {0o700, 0o2700, 0o600}


def test_existing_object_keeps_its_mode(top: Path) -> None:
    (top / "log" / "runs").mkdir(parents=True)
    (top / "log" / "runs" / "1.json").write_bytes(b"{}")
    for path in (top / "log", top / "log" / "runs"):
        path.chmod(0o755)
    (top / "log" / "runs" / "1.json").chmod(0o644)
    backend = LocalBackend(top / "log")
    backend.create("runs/2.json", b"{}")
    backend.create("segments/1/a.arrow", b"rows")
    assert _modes(top / "log") == {
        "runs": 0o755,
        "runs/1.json": 0o644,
        "runs/2.json": 0o600,
        "segments": 0o700,
        "segments/1": 0o700,
        "segments/1/a.arrow": 0o600,
    }
