"""The host of a flusher needs no Spark: commands run if pyspark cannot be imported."""

from __future__ import annotations

import os
import sys

from tests.cli.job import KIND, Job, rows_of
from tests.support.programs import ran

WITHOUT = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
from wal_sink.cli.main import app
app()
"""


def test_flush_and_status_run_without_pyspark(job: Job) -> None:
    for command in (["flush", "--option", f"target={KIND}"], ["status"]):
        done = ran(
            [sys.executable, "-c", WITHOUT, *command, "checkpoint"],
            cwd=job.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.returncode == 0, done.stderr
    assert "none: everything checkpointed is flushed" in done.stdout
    assert job.rows() == rows_of(0, 1, 2, 3, 4)
