"""What `register` says of a Python that Spark's workers would not find on the driver's host."""

from __future__ import annotations

import pytest

from wal_sink.spark.api import no_worker_python


@pytest.mark.parametrize(
    ("archives", "line"),
    [
        (
            ["hdfs://nn/other.zip#x", "file:///tmp/my envs/env.tar.gz#environment"],
            "cd /job && mkdir -p environment && tar -xzf '/tmp/my envs/env.tar.gz' -C environment",
        ),
        (
            ["file:/tmp/a/env.tar.gz#environment"],
            "tar -xzf /tmp/a/env.tar.gz -C environment",
        ),
        (["file:///tmp/environment"], "tar -xzf /tmp/environment -C environment"),
        ([], "at the same path on every host"),
        (["file:///tmp/env.tar.gz#elsewhere"], "at the same path on every host"),
    ],
)
def test_the_error_has_the_line_to_add(archives: list[str], line: str) -> None:
    """Of the archive that would have brought it; without one, what to set."""
    error = no_worker_python("./environment/bin/python", "/job", archives)
    assert "'./environment/bin/python', also some on the driver's host" in error.what
    assert line in error.remedy
