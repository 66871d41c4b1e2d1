"""Spark's offsets files in both versions, and the watcher of `commits/`.

The files in `spark_offsets/` were written by Spark 4.3.0.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal_sink.checkpoint.checkpoint import CommitWatcher, Offsets, parse_offsets
from wal_sink.errors import UnknownOffsetsFormat

FILES = Path(__file__).with_name("spark_offsets")


def text(path: str) -> str:
    return (FILES / path).read_text(encoding="utf-8")


def offsets(path: str) -> Offsets:
    return parse_offsets(text(path), path)


def test_offsets_of_named_sources_are_read() -> None:
    """Given four epochs of which the third adds a source, each has a digest of its own."""
    digests = [offsets(f"named/{epoch}").digest for epoch in range(4)]
    assert len(set(digests)) == 4
    assert text("named/2").count("\nmore:") == 1, "the second source came with epoch 2"


def test_digest_ignores_the_order_of_named_sources() -> None:
    """Spark writes named sources in the order of a hash map, which a restart may change."""
    version, metadata, *sources = text("six_sources/1").split("\n")
    assert len(sources) == 6
    assert sources != sorted(sources)
    turned = parse_offsets("\n".join([version, metadata, *reversed(sources)]), "there")
    assert turned.digest == offsets("six_sources/1").digest
    assert turned.digest != offsets("six_sources/0").digest


def test_digest_depends_on_the_order_of_unnamed_sources() -> None:
    """In `v1` the number of the line identifies the source."""
    first, second = (parse_offsets(f"v1\n{{}}\n{lines}", "there") for lines in ("5\n6", "6\n5"))
    assert first.digest != second.digest


def test_offsets_of_numbered_sources_are_read() -> None:
    """Spark writes them with `spark.sql.streaming.offsetLog.formatVersion=2`."""
    assert offsets("numbered/0").digest != offsets("numbered/1").digest


@pytest.mark.parametrize("sources", ['{"logOffset":0', "orders", "orders:", ':{"logOffset":0}', ""])
def test_named_source_without_a_name_or_offset_is_refused(sources: str) -> None:
    with pytest.raises(UnknownOffsetsFormat, match=r"offsets/0 has no `<name>:<offset>`"):
        parse_offsets(f"v2\n{{}}\n{sources}", "offsets/0")


def test_offsets_of_an_unknown_version_are_refused() -> None:
    with pytest.raises(
        UnknownOffsetsFormat, match=r"offsets/0 has the version 'v3'.*'v1' and 'v2'"
    ):
        parse_offsets("v3\n{}\n{}", "offsets/0")


def test_digest_ignores_the_time_of_the_batch() -> None:
    """Line two differs between two attempts from the same offsets."""
    texts = [f'v1\n{{"batchTimestampMs":{time}}}\n{{"offset":5}}' for time in (1, 2)]
    first, second = (parse_offsets(text, "offsets/0").digest for text in texts)
    assert first == second


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


def test_unchanged_commits_folder_is_not_listed(tmp_path: Path) -> None:
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


def test_watcher_sees_commits_in_a_replaced_folder(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    commit(checkpoint, "7")
    commit_watcher = CommitWatcher(f"file://{checkpoint}")
    assert commit_watcher.has_new_commit()
    checkpoint.rename(tmp_path / "former")
    assert not commit_watcher.has_new_commit()
    commit(checkpoint, "0")
    assert commit_watcher.has_new_commit()
