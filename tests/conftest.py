"""Fixtures, settings and order of all tests."""

from __future__ import annotations

import ast
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.cases import CASES
from tests.sql.mariadb import database, mariadb  # noqa: F401 - fixtures
from tests.support import order
from tests.support.class_archive import CASSANDRA, SPARK
from tests.support.s3 import s3  # noqa: F401 - a fixture
from tests.support.servers.cassandra_container import DockerNotUsable, find_engine
from tests.support.spark_fixtures import sessions, sibling, spark  # noqa: F401 - fixtures
from wal_sink.demo.kafka import Broker
from wal_sink.flush import flusher

pytest.register_assert_rewrite("tests.state_backends.contract")  # a suite to derive from

pytest_plugins = [
    "tests.support.cassandra_fixtures",  # `cassandra` and `keyspace`
    "tests.support.postgresql_fixtures",  # `postgresql` and `schema`
    "tests.support.deploy_table",  # `counted`
    "tests.support.deselection",
]

SERVERS = ("kafka", "mariadb", "postgresql", "s3")
"""Fixtures that start a server for each process of the tests."""

_MEMORY, _LEAST_BYTES = Path("/dev/shm"), 4 << 30
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _LEAST_BYTES:
    # Logs, checkpoints and servers sync each write. Tests kill only processes, so files in memory are safe.
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# Processes of the contract suites are forked from a process with these imports.
multiprocessing.set_forkserver_preload(["tests.state_backends.contract", "s3fs"])

if sys.version_info < (3, 11, 8):
    # All threads share one count of the parser's depth (CPython gh-106905). If Hypothesis parses sources
    # while a driver's thread logs a traceback, which parses, too, Hypothesis ends with SystemError.
    _parse, _parsing = ast.parse, threading.RLock()

    def _parse_alone(*args: Any, **options: Any) -> Any:
        with _parsing:
            return _parse(*args, **options)

    ast.parse = _parse_alone

# Without byte code, each of a thousand processes would compile the product.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONFAULTHANDLER"] = "1"  # of Spark's workers: a crash shows its stacks
os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same packages
for _archive in (SPARK, CASSANDRA):
    os.environ.setdefault(_archive.variable, _archive.options)
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", SPARK.options)


def pytest_report_header() -> str:
    """Return whether tests marked `docker` are skipped, and why."""
    try:
        find_engine()
    except DockerNotUsable as error:
        return f"docker: tests so marked are skipped, since {error.what}"
    return "docker: tests so marked run"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that needs a server of `SERVERS`: `make check` leaves it out."""
    for server in SERVERS:
        if server in getattr(item, "fixturenames", ()):
            item.add_marker(getattr(pytest.mark, server))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let several processes begin with the long tests; one process keeps the usual order."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = order.dealt([(rank(item), item) for item in items], processes)


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the thousands of tests, which stay to the end."""
    gc.collect()
    gc.freeze()


def rank(item: pytest.Item) -> order.Rank:
    """Return the length of a test, 0 for the longest, and the group of tests that one process runs.

    The tests of a server are a group, and so are the tests of a module that starts Cassandra: otherwise each
    process would start the server.
    """
    marks = ("slow_first", "spark", "cassandra", *SERVERS)
    length, mark = next(
        ((i, mark) for i, mark in enumerate(marks) if item.get_closest_marker(mark)),
        (len(marks), ""),
    )
    if item.get_closest_marker("connect"):
        return order.Rank(length, "connect")
    if mark == "cassandra":
        return order.Rank(length, item.nodeid.split("::")[0])
    return order.Rank(length, mark if mark in SERVERS else item.nodeid)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make the archive of Java classes before the first test that needs it, once for all runs."""
    if item.get_closest_marker("spark"):
        SPARK.make()
    if item.get_closest_marker("cassandra"):
        CASSANDRA.make()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """Run a broker. A test that stops or pauses its broker starts another one."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the flusher write each epoch as a window of its own."""
    monkeypatch.setattr(flusher, "WINDOW_EPOCHS", 1)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the counts of explored cases to the process that prints them (xdist)."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["explored"] = CASES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the counts of explored cases of another process."""
    CASES.update(getattr(node, "workeroutput", {}).get("explored", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts of explored cases, and of skipped tests by reason."""
    if CASES:
        terminalreporter.section("explored")
        for what in sorted(CASES):
            terminalreporter.write_line(f"{what}: {CASES[what]}")
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ").split("\n")[0]
        for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        terminalreporter.section("skipped")
        for reason, number in reasons.most_common():
            terminalreporter.write_line(f"{number:4} since {reason}")
