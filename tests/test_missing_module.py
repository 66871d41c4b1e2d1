"""A module that is missing is named: that of a target in a worker, and the client of an extra."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
import textwrap
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from state_backends.memory import MemoryBackend
from wal_sink.builtin_targets import OWN
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import Configuration, configure, retention_of
from wal_sink.errors import OptionError
from wal_sink.flush.connection import Pipeline
from wal_sink.flush.window import Window
from wal_sink.flush.write import FlushTask
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.plan import Plan
from wal_sink.spark.query_errors import failure_in
from wal_sink.targets.client import importing
from wal_sink.targets.delta import DeltaTarget

MODULE = """
    from sqlite_target import SqliteOptions, SqliteTarget

    class MyOptions(SqliteOptions, frozen=True, kw_only=True):
        pass

    class MyTarget(SqliteTarget):
        options_type = MyOptions
"""


def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """Configure a query with a target whose module other processes lack."""
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
def test_error_of_worker_names_missing_module_of_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, travels: str
) -> None:
    configuration = configured(tmp_path, monkeypatch)
    if travels == "to the query's tasks":
        sent = pickle.dumps(configuration)
        assert pickle.loads(sent).public == configuration.public
    else:
        (destination,) = configuration.destinations
        pipeline = Pipeline(
            query_id="q",
            store=MemoryBackend("wal"),
            checkpoint=Checkpoint(MemoryBackend("checkpoint")),
            target=destination.target,
            target_name=destination.name,
            several=False,
            retention=retention_of(configuration.sink),
        )
        window = Window(
            pipeline,
            manifests=(),
            plan=Plan(key="k", target="t", table="t", columns=()),
            finishes=LedgerRow("q", "log", 0, ""),
        )
        task = FlushTask(window, "attempt", 7)
        sent = pickle.dumps(task)
        assert pickle.loads(sent)._rows_per_second == 7
    worker = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"],
        input=sent,
        capture_output=True,
        check=False,
    )
    failure = failure_in(worker.stderr.decode())
    assert failure is not None
    assert f"cannot import shop_target_{tmp_path.name}" in failure.what
    assert "spark.submit.pyFiles" in failure.remedy


def test_error_of_missing_client_names_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("deltalake.")]:
        monkeypatch.delitem(sys.modules, module)  # another test has imported it
    monkeypatch.setitem(sys.modules, "deltalake", None)  # makes its import fail
    with (
        pytest.raises(OptionError, match=r"target is delta, and deltalake.* not(.|\n)*\[delta\]"),
        importing(DeltaTarget),
    ):
        importlib.import_module("deltalake.schema")


@pytest.mark.parametrize("missing", ["wal_sink.targets.delta.no_such_module", "no_such_module"])
def test_missing_module_of_no_client_is_raised_unchanged(missing: str) -> None:
    """For example a module of wal_sink in a broken installation."""
    with pytest.raises(ModuleNotFoundError, match=missing), importing(DeltaTarget):
        importlib.import_module(missing)


def test_extra_of_a_target_installs_its_client() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = packages_distributions()
    for info in OWN.values():
        brought = {re.split(r"[\[><=]", item)[0] for item in extras.get(info.name, ())}
        for module in info.client:
            assert brought & {item.lower() for item in distributions[module]}, module
