"""`CommitWatcher` notices a new commit without reading the checkpoint's files."""

from __future__ import annotations

import os
from pathlib import Path

from wal_sink.checkpoint.watcher import CommitWatcher


def commit(checkpoint: Path, name: str) -> None:
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits" / name).write_text("v1\n{}")


def test_watcher_reports_a_new_file_once(tmp_path: Path) -> None:
    """Files with other names are Spark's unfinished files."""
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
    """Both files leave the folder with the same time of change."""
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    commit(tmp_path, "0")
    changed = (tmp_path / "commits").stat()
    assert commit_watcher.has_new_commit()
    commit(tmp_path, "1")
    os.utime(tmp_path / "commits", ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert commit_watcher.has_new_commit()


def test_quiet_folder_is_not_listed(tmp_path: Path) -> None:
    """An old time of change proves that no file was added."""
    commit_watcher = CommitWatcher(f"file://{tmp_path}")
    commit(tmp_path, "0")
    long_ago = (tmp_path / "commits").stat().st_mtime - 60
    os.utime(tmp_path / "commits", (long_ago, long_ago))
    assert commit_watcher.has_new_commit()
    commit(tmp_path, "1")
    os.utime(tmp_path / "commits", (long_ago, long_ago))
    assert not commit_watcher.has_new_commit(), "as if nothing had changed"


def test_watcher_of_a_bucket_sends_no_requests() -> None:
    commit_watcher = CommitWatcher("s3://bucket/checkpoint")
    assert not commit_watcher.can_watch
    assert not commit_watcher.has_new_commit()


def test_watcher_reads_a_replaced_folder(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    commit(checkpoint, "7")
    commit_watcher = CommitWatcher(f"file://{checkpoint}")
    assert commit_watcher.has_new_commit()
    checkpoint.rename(tmp_path / "former")
    assert not commit_watcher.has_new_commit()
    commit(checkpoint, "0")
    assert commit_watcher.has_new_commit()
