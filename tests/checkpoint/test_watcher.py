"""`CommitWatcher` notices a new commit without reading the checkpoint."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wal_sink.checkpoint.watcher import CommitWatcher, FolderEvents

SECONDS = 10.0
"""Longer than anything takes here; a test that waits so long fails."""

NEVER = 3_600.0


def commit(checkpoint: Path, name: str) -> None:
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits" / name).write_text("v1\n{}")


def rename_in(checkpoint: Path, name: str) -> None:
    """Commit as Spark does, by a rename."""
    commit(checkpoint, f".{name}.tmp")
    (checkpoint / "commits" / f".{name}.tmp").rename(checkpoint / "commits" / name)


class Waiting(threading.Thread):
    """A thread that waits until there is a new commit, or until it is interrupted."""

    def __init__(self, commit_watcher: CommitWatcher) -> None:
        super().__init__(daemon=True)
        self._commit_watcher = commit_watcher
        self._over = threading.Event()
        self.found = False

    def run(self) -> None:
        while not self.found and not self._over.is_set():
            self.found = self._commit_watcher.wait(NEVER)

    def interrupt(self) -> None:
        self._over.set()
        self._commit_watcher.interrupt()

    def ended(self) -> bool:
        self.join(SECONDS)
        return not self.is_alive()


@pytest.fixture
def waits() -> Iterator[Callable[[CommitWatcher], Waiting]]:
    """Start threads that wait; none is left after the test."""
    started: list[Waiting] = []

    def start(commit_watcher: CommitWatcher) -> Waiting:
        started.append(Waiting(commit_watcher))
        started[-1].start()
        return started[-1]

    yield start
    for item in started:
        item.interrupt()
        assert item.ended()
        item._commit_watcher.close()


@pytest.fixture
def told_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by looking again and again."""
    monkeypatch.setattr("wal_sink.checkpoint.watcher._WATCHED_LOOK_S", NEVER)


Waits = Callable[[CommitWatcher], Waiting]


def test_each_new_file_is_noticed_once(tmp_path: Path) -> None:
    """The newest one counts; files under other names are Spark's work in progress."""
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    assert commit_watcher.can_watch
    assert not commit_watcher.has_new_commit(), "there is no folder yet"
    for epoch in ("0", "1", "10"):
        commit(tmp_path, f".{epoch}.tmp")
        assert not commit_watcher.has_new_commit()
        commit(tmp_path, epoch)
        assert commit_watcher.has_new_commit()
        assert not commit_watcher.has_new_commit()


def test_watcher_sees_two_files_of_one_clock_tick(tmp_path: Path) -> None:
    """The folder has the same time of change after both."""
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    commit(tmp_path, "0")
    changed = (tmp_path / "commits").stat()
    assert commit_watcher.has_new_commit()
    commit(tmp_path, "1")
    os.utime(tmp_path / "commits", ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert commit_watcher.has_new_commit()


def test_a_quiet_folder_is_not_listed(tmp_path: Path) -> None:
    """Its time of change is enough, once that is a while ago."""
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    commit(tmp_path, "0")
    long_ago = (tmp_path / "commits").stat().st_mtime - 60
    os.utime(tmp_path / "commits", (long_ago, long_ago))
    assert commit_watcher.has_new_commit()
    commit(tmp_path, "1")
    os.utime(tmp_path / "commits", (long_ago, long_ago))
    assert not commit_watcher.has_new_commit(), "as if nothing had changed"


def test_watcher_of_a_bucket_sends_no_requests() -> None:
    """The event, and a listing now and then, have to do."""
    commit_watcher = CommitWatcher("s3://bucket/checkpoint")
    assert not commit_watcher.can_watch
    assert not commit_watcher.has_new_commit()


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("told_or_never")
@pytest.mark.parametrize("write", [commit, rename_in])
def test_the_system_tells_of_a_new_file(
    tmp_path: Path, waits: Waits, write: Callable[[Path, str], None]
) -> None:
    """However it comes; a file that comes between two waits is told at the next one."""
    (tmp_path / "commits").mkdir()
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    for epoch in range(3):
        waiting = waits(commit_watcher)
        time.sleep(0.05)
        assert waiting.is_alive()
        write(tmp_path, str(epoch))
        assert waiting.ended()
        assert waiting.found
    write(tmp_path, "3")
    assert waits(commit_watcher).ended()


@pytest.mark.usefixtures("told_or_never")
def test_a_wait_can_be_interrupted(tmp_path: Path, waits: Waits) -> None:
    """Also before it begins."""
    (tmp_path / "commits").mkdir()
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    assert not commit_watcher.wait(0), "it begins to watch"
    waiting = waits(commit_watcher)
    time.sleep(0.05)
    waiting.interrupt()
    assert waiting.ended()
    assert not waiting.found
    commit_watcher.interrupt()
    assert not commit_watcher.wait(NEVER)


@pytest.mark.usefixtures("told_or_never")
def test_a_folder_that_comes_late_or_again_is_watched(tmp_path: Path, waits: Waits) -> None:
    """Spark makes it as the query starts; people delete checkpoints."""
    checkpoint = tmp_path / "checkpoint"
    commit_watcher = CommitWatcher(f"file://{checkpoint}")
    waiting = waits(commit_watcher)
    time.sleep(0.05)
    rename_in(checkpoint, "7")
    assert waiting.ended()
    waiting = waits(commit_watcher)
    time.sleep(0.05)
    shutil.rmtree(checkpoint)
    time.sleep(0.05)
    rename_in(checkpoint, "0")
    assert waiting.ended()
    assert waiting.found


def test_watcher_reads_a_replaced_folder_without_event(
    tmp_path: Path, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the folder that has taken the place of the one that is watched the system tells nothing."""
    checkpoint = tmp_path / "checkpoint"
    commit(checkpoint, "0")
    commit_watcher = CommitWatcher(f"file://{checkpoint}")
    assert commit_watcher.wait(0)
    checkpoint.rename(tmp_path / "old")
    for epoch in range(1, 4):
        waiting = waits(commit_watcher)
        rename_in(checkpoint, str(epoch))
        assert waiting.ended()
        assert waiting.found
    monkeypatch.setattr("wal_sink.checkpoint.watcher._WATCHED_LOOK_S", NEVER)
    waiting = waits(commit_watcher)  # then it looks every few milliseconds
    rename_in(checkpoint, "4")
    assert waiting.ended()


def test_a_system_that_watches_no_more_folders(tmp_path: Path, waits: Waits) -> None:
    """It has a limit for each user; then the folder is looked at."""
    commit(tmp_path, "0")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    events, refused = FolderEvents(tmp_path / "commits"), 0
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        taken = _all_descriptors()
        try:
            events.wait(0)
        except OSError as error:
            refused = error.errno or 0
        finally:
            for item in taken:
                os.close(item)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused == errno.EMFILE
    assert events.wait(0), "it is tried again"
    events.close()
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    assert commit_watcher.wait(0)
    commit_watcher.close()


def _all_descriptors() -> list[int]:
    taken = []
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return taken


@pytest.mark.usefixtures("told_or_never")
def test_no_open_file_is_left(tmp_path: Path) -> None:
    """A late interrupt does not write into what has the number of a file that was closed."""
    commit(tmp_path, "0")
    earlier = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are wanted
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    assert commit_watcher.wait(0)
    assert len(os.listdir("/proc/self/fd")) == len(earlier) + 2  # noqa: PTH208
    commit_watcher.close()
    with (tmp_path / "other").open("wb") as one, (tmp_path / "another").open("wb") as another:
        commit_watcher.interrupt()
        assert (one.tell(), another.tell()) == (0, 0)
    assert (tmp_path / "other").read_bytes() + (tmp_path / "another").read_bytes() == b""
    assert set(os.listdir("/proc/self/fd")) == earlier  # noqa: PTH208
    commit_watcher.close()
