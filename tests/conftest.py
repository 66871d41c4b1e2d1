"""What holds for all tests: the shipped fixtures, and the packages of Spark's workers."""

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
from tests.support.servers import docker
from tests.support.servers.cassandra_container import IMAGE
from tests.support.spark_fixtures import sessions, sibling, spark  # noqa: F401 - fixtures
from wal_sink.demo.servers.kafka import Broker
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
    # Logs, checkpoints and servers sync each write. Tests kill processes, so no disk has to keep it.
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# Processes of commands and of the contract suites are forked from one that has loaded what they need.
multiprocessing.set_forkserver_preload(
    [
        "wal_sink.cli.main",
        "wal_sink.targets.cassandra",
        "tests.state_backends.contract",
        "s3fs",
    ]
)

if sys.version_info < (3, 11, 8):
    # Before, all threads share one count of the parser's depth (CPython gh-106905). Hypothesis parses
    # sources, and its callback of the garbage collector lets other threads run meanwhile. A driver's thread
    # that logs a traceback parses, too: Hypothesis ended with SystemError.
    _parse, _parsing = ast.parse, threading.RLock()

    def _parse_alone(*args: Any, **options: Any) -> Any:
        with _parsing:
            return _parse(*args, **options)

    ast.parse = _parse_alone

# Each of a thousand processes would compile the product again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONFAULTHANDLER"] = "1"  # of Spark's workers: a crash shows its stacks
os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the same packages
for _archive in (SPARK, CASSANDRA):
    os.environ.setdefault(_archive.variable, _archive.options)
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", SPARK.options)


def pytest_report_header() -> str:
    """Say when the tests marked `docker` are skipped, and why."""
    try:
        docker.find(IMAGE)
    except docker.DockerNotUsable as error:
        return f"docker: tests so marked are skipped, since {error.what}"
    return "docker: tests so marked run"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what needs the server of S3, PostgreSQL, MariaDB or Kafka: `make check` leaves it out."""
    for server in SERVERS:
        if server in getattr(item, "fixturenames", ()):
            item.add_marker(getattr(pytest.mark, server))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests where several processes share them; alone, in the usual order."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = order.dealt([(rank(item), item) for item in items], processes)


def pytest_collection_finish() -> None:
    """Let the garbage collector skip what is there: thousands of tests, which stay to the end."""
    gc.collect()
    gc.freeze()


def rank(item: pytest.Item) -> order.Rank:
    """Say how long a test takes: 0 for minutes, as it starts Spark several times.

    The tests of a server stay together, and those of a module with a node of Cassandra of its own: else each
    process would start one.
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
    """Make the archives of classes as soon as they are of use, once for all runs."""
    if item.get_closest_marker("spark"):
        SPARK.make()
    if item.get_closest_marker("cassandra"):
        CASSANDRA.make()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """Start the one broker; a test that leaves it stopped or paused takes one of its own."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each epoch be a window of its own, for what a test wants to see between two of them."""
    monkeypatch.setattr(flusher, "WINDOW_EPOCHS", 1)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was explored to the process that prints it, where tests run in several (xdist)."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["explored"] = CASES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what another process has explored."""
    CASES.update(getattr(node, "workeroutput", {}).get("explored", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was explored, the figures of tests/README.md; and at the end why tests were skipped."""
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
