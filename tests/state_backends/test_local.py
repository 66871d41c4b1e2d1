"""LocalBackend and the operating system: syncs, links, folders, errors."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from state_backends import LocalBackend, StateBackendError

_LEFT_BEHIND = ".0123456789abcdef0123456789abcdef.tmp"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "new" / "log"


@pytest.fixture
def backend(root: Path) -> LocalBackend:
    return LocalBackend(root)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[str]]]:
    """Record each sync, in order: its path, and the names in the folder at that time."""
    record = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        record.append((path, os.listdir(path if path.is_dir() else path.parent)))  # noqa: PTH208
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return record


def _failing(code: int, on: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fails if an argument ends with `on`, and otherwise calls `real`."""

    def call(*arguments: Any) -> Any:
        if any(str(argument).endswith(on) for argument in arguments):
            raise OSError(code, os.strerror(code), on)
        return real(*arguments)

    return call


def test_construction_does_no_io(backend: LocalBackend, root: Path) -> None:
    assert backend == LocalBackend(str(root))
    assert backend.list() == []
    assert not root.parent.exists()


def test_create_syncs_file_then_folders(
    backend: LocalBackend, root: Path, tmp_path: Path, synced: list[tuple[Path, list[str]]]
) -> None:
    """The content is synced before the object has its name, and the name before `create` returns."""
    backend.create("a/b/object", b"x")
    (file, beside), *folders = synced
    assert file.parent == root / "a/b"
    assert beside == [file.name], "the object had its name before its content was synced"
    assert [folder for folder, _ in folders] == [
        root / "a/b", root / "a", root, tmp_path / "new", tmp_path
    ]  # fmt: skip
    assert folders[0][1] == ["object"], "the folder was synced before the object had its name"

    synced.clear()
    backend.create("a/b/other", b"x")
    assert [folder for folder, _ in synced[1:]] == [root / "a/b", root / "a", root], (
        "folders below the root are synced always: another writer may have just made them"
    )


def test_output_and_replace_sync_their_content(
    backend: LocalBackend, root: Path, synced: list[tuple[Path, list[str]]]
) -> None:
    """`open_output` syncs file and folders, `replace` only the file."""
    with backend.open_output("a/segment") as output:
        output.write(b"x")
        assert synced == []
    assert [path for path, _ in synced[1:3]] == [root / "a", root]
    synced.clear()
    backend.replace("a/hint", b"x")
    assert len(synced) == 1
    assert "hint" not in synced[0][1], "the hint had its name before its content was synced"


def test_delete_syncs_the_folders_that_stay(
    backend: LocalBackend, root: Path, synced: list[tuple[Path, list[str]]]
) -> None:
    """Empty folders are removed, the others are synced, and the root stays."""
    for path in ("a/1", "b/c/1", "b/c/2", "b/d/1"):
        backend.create(path, b"x")
    synced.clear()
    backend.delete(["a/1", "b/c/1", "b/d/1"])
    assert {path: sorted(names) for path, names in synced} == {root: ["b"], root / "b": ["c"],
                                                               root / "b/c": ["2"]}  # fmt: skip
    backend.delete(backend.list())
    assert os.listdir(root) == []  # noqa: PTH208


def test_write_whose_sync_fails_raises(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No object exists if the sync of the file fails. An object may exist if the sync of a folder fails."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(os, "fsync", fail)
    for write in (backend.create, backend.replace):
        with pytest.raises(OSError, match="disk"):
            write("a", b"x")
        assert backend.list() == []
    assert backend.sweep_unfinished(-1) == 0
    monkeypatch.setattr("state_backends.local.sync", fail)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with pytest.raises(OSError, match="disk"):
        backend.create("a", b"x")
    assert backend.list() == ["a"], "the outcome was unknown; here it was a success"


def test_mount_without_links_is_refused(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`probe` and `create` raise an error with a remedy."""
    monkeypatch.setattr(os, "link", _failing(errno.EPERM, "", os.link))
    for call in (backend.probe, lambda: backend.create("a", b"x")):
        with pytest.raises(StateBackendError, match=r"hard links.*Use a mount"):
            call()
    assert backend.list() == []


def test_probe_reports_the_error_of_the_system(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of `probe` has the reason of the operating system."""
    monkeypatch.setattr(os, "open", _failing(errno.EACCES, ".tmp", os.open))
    with pytest.raises(StateBackendError, match=r"Permission denied.*Check that this user"):
        backend.probe()


def test_lost_reply_to_a_link_is_a_success(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may report a link that it has made as existing."""
    link = os.link

    def lose_reply(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "lost reply")

    monkeypatch.setattr(os, "link", lose_reply)
    backend.create("a", b"x")
    assert backend.read("a") == b"x"


def test_list_of_unreadable_folder_raises(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be read raises an error; a folder that was removed does not."""
    backend.create("a/1", b"x")
    backend.create("b/2", b"x")
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", _failing(errno.EACCES, "/b", scandir))
    with pytest.raises(PermissionError):
        backend.list()
    monkeypatch.setattr(os, "scandir", _failing(errno.ENOENT, "/b", scandir))
    assert backend.list() == ["a/1"]


def test_sweep_removes_only_old_unfinished_files(backend: LocalBackend, root: Path) -> None:
    backend.create("a/object", b"x")
    for remaining in (
        f"a/{_LEFT_BEHIND}",
        f"gone/{_LEFT_BEHIND}",
        f"young/{_LEFT_BEHIND}",
        "a/.other",
    ):
        (root / remaining).parent.mkdir(exist_ok=True)
        (root / remaining).write_bytes(b"x")
        if "young" not in remaining:
            os.utime(root / remaining, (0, 0))
    os.utime(root / "a/object", (0, 0))
    assert backend.list() == ["a/object"]
    assert backend.sweep_unfinished(3600) == 2
    assert sorted(os.listdir(root)) == ["a", "young"]  # noqa: PTH208
    assert sorted(os.listdir(root / "a")) == [".other", "object"]  # noqa: PTH208


def test_sweep_removes_empty_folders(backend: LocalBackend, root: Path) -> None:
    backend.create("a/object", b"x")
    for remaining in ("a/b/c", "a/d", "e"):
        (root / remaining).mkdir(parents=True)
    assert backend.sweep_unfinished(3600) == 0
    assert sorted(path.name for path in root.rglob("*")) == ["a", "object"]


def test_writer_whose_file_was_swept_fails(backend: LocalBackend) -> None:
    """A sweep with a low age costs a live writer an error, not a missing object."""

    def write_slowly() -> None:
        with backend.open_output("a/slow") as output:
            output.write(b"x")
            output.flush()
            assert backend.sweep_unfinished(-1) == 1

    with pytest.raises(StateBackendError, match="sweep took it"):
        write_slowly()
    assert backend.list() == []


def test_object_and_folder_do_not_share_a_name(backend: LocalBackend, root: Path) -> None:
    """The error is not a `FileExistsError`, after which a creator would read the object."""
    backend.create("a/b", b"x")
    for path in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(StateBackendError, match=r"is a folder|is a file"):
            backend.create(path, b"x")
    (root / "nowhere").symlink_to(root / "missing")
    with pytest.raises(StateBackendError, match="broken link"):
        backend.create("nowhere/a", b"x")


def test_store_follows_a_folder_that_is_a_link(
    backend: LocalBackend, root: Path, tmp_path: Path
) -> None:
    """An operator may move a folder to another disk and leave a link."""
    (tmp_path / "disk").mkdir()
    root.mkdir(parents=True)
    (root / "segments").symlink_to(tmp_path / "disk")
    backend.create("segments/1/a", b"x")
    assert backend.list() == ["segments/1/a"]
    backend.delete(["segments/1/a"])
    assert (root / "segments").is_symlink()


def test_state_backends_import_neither_wal_sink_nor_spark() -> None:
    """The package imports neither wal_sink nor Spark nor a database driver."""
    split = subprocess.run(
        [sys.executable, "-c", "import sys, state_backends; print(*sys.modules)"],
        check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
    ).stdout.split()  # fmt: skip
    assert "state_backends" in split
    assert not {"wal_sink", "pyspark", "pyarrow", "cassandra", "pytest"}.intersection(split)
