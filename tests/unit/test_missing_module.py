"""What a worker says that lacks the module of a target: its name, and where to put it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from state_backends.memory import MemoryBackend
from wal_sink.configuration import Configuration, configure
from wal_sink.flush.tasks import FlushTask
from wal_sink.model.ledger import Owner
from wal_sink.spark.errors import failure_in
from wal_sink.wal.log import Log

MODULE = """
    from sqlite_target import SqliteOptions, SqliteTarget

    class MyOptions(SqliteOptions, frozen=True, kw_only=True):
        pass

    class MyTarget(SqliteTarget):
        options_type = MyOptions
"""


def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """Configure a query with a target of one's own, which other processes lack."""
    name = f"shop_target_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    options = {
        "checkpointLocation": f"file://{tmp_path}/checkpoint",
        "target": f"{name}:MyTarget",
        "sqlite.path": "/shop.db",
        "table": "t",
    }
    return configure(options)


@pytest.mark.parametrize("travels", ["to the query's tasks", "to a flush job's"])
def test_a_worker_without_the_targets_module_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, travels: str
) -> None:
    configuration = configured(tmp_path, monkeypatch)
    if travels == "to the query's tasks":
        sent = pickle.dumps(configuration)
        assert pickle.loads(sent).public == configuration.public
    else:
        owner = Owner("q", "log", "checkpoint")
        task = FlushTask(Log(MemoryBackend("wal")), configuration.target, owner, "key", 7)
        sent = pickle.dumps(task)
        assert pickle.loads(sent)._rows_per_second == 7
    worker = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"],
        input=sent,
        capture_output=True,
        check=False,
    )
    found = failure_in(worker.stderr.decode())
    assert found is not None
    assert f"cannot import shop_target_{tmp_path.name}" in found.what
    assert "spark.submit.pyFiles" in found.remedy
