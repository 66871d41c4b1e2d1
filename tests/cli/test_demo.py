"""`wal-sink demo`: its tables, its report, and the calls that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from typer.testing import CliRunner

from tests.protocol.engine import World
from tests.support.programs import ran
from wal_sink.builtin_targets import BUILTIN
from wal_sink.cli.demo import _check_start
from wal_sink.cli.main import app
from wal_sink.demo.flights import rows_per_file
from wal_sink.demo.kills import KILLS, Kill, discarded_rows
from wal_sink.demo.outcome import Comparison, KillOutcome, compare_rows, report
from wal_sink.demo.queries import FLIGHTS as FLIGHTS_QUERY
from wal_sink.demo.queries import epochs
from wal_sink.demo.stores import Stores
from wal_sink.errors import OptionError

FLIGHTS = 720
COMMAND = [str(Path(sys.executable).with_name("wal-sink"))]
ONE_KILL = """
from wal_sink.demo import kills, queries
kills.KILLS = kills.KILLS[1:2]
queries._FEW_EPOCHS = 3
from wal_sink.cli.main import app
app()
"""
"""The command with three epochs, and only the kill after which the control has extra rows."""


def wal_sink(
    *arguments: object, folder: Path, command: list[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """Run the command as a process."""
    return ran([*command, *map(str, arguments)], cwd=folder)


@pytest.mark.slow_first
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("targets", "server", "command", "kills"),
    [
        (["sql"], "SQLite", [sys.executable, "-c", ONE_KILL], KILLS[1:2]),
        pytest.param(
            ["sql", "delta", "iceberg"],
            "SQLite and Delta Lake and Apache Iceberg",
            COMMAND,
            KILLS,
            marks=pytest.mark.test_all,
        ),
    ],
)
def test_demo_writes_rows_once_and_its_control_doubles_rows(
    tmp_path: Path, targets: list[str], server: str, command: list[str], kills: tuple[Kill, ...]
) -> None:
    """The stores need no server, and share a log.

    Stores with a server, and all controls, are in tests/spark/test_demo_stores.py.
    """
    arguments = ("--json", "--targets", ",".join(targets), "--flights", FLIGHTS)
    done = wal_sink("demo", *arguments, folder=tmp_path, command=command)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["target"] == ",".join(targets)
    assert document["server"] == server
    tables = [table for table in document["tables"] if table["sink"] == "wal_sink"]
    assert {table["target"] for table in tables} == {*targets}
    ours = len(targets) * (FLIGHTS + FLIGHTS // 10)
    assert [document[name] for name in ("expected", "found", "missing", "extra")] == [
        ours,
        ours,
        0,
        0,
    ]
    number = 3 if command != COMMAND else epochs(FLIGHTS)
    all_flights, tenth = (rows_per_file(n, number) for n in (FLIGHTS, FLIGHTS // 10))
    assert document["control_extra"] == tenth, (
        "what is written and not committed; the rest is rolled back"
    )
    assert [kill["window"] for kill in document["kills"]] == [kill.window for kill in kills]
    size = all_flights + tenth
    writing, published, flushing = (kill.window for kill in KILLS)
    discarded = {kill["window"]: kill["rows_discarded"] for kill in document["kills"]}
    assert discarded[published] == size
    assert discarded.get(writing, 0) == 0
    assert discarded.get(flushing, 0) <= size, "what is checkpointed is sent again, not thrown away"
    picture = Path(document["picture"])
    assert picture.parent == tmp_path
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "SIGKILL in epoch" in done.stderr


@pytest.mark.connect
@pytest.mark.spark
@pytest.mark.test_all
@pytest.mark.timeout(900)
def test_connect_demo_has_each_row_once(tmp_path: Path) -> None:
    """Each SIGKILL hits server and client. The control runs in the server, too."""
    arguments = ("--json", "--connect", "--target", "sql", "--flights", FLIGHTS)
    done = wal_sink("demo", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    ours = FLIGHTS + FLIGHTS // 10
    counts = [document[name] for name in ("expected", "found", "missing", "extra")]
    assert counts == [ours, ours, 0, 0]
    assert [kill["window"] for kill in document["kills"]] == [kill.window for kill in KILLS]


def test_demo_report_counts_rows_that_a_kill_discards(world: World, tmp_path: Path) -> None:
    """A kill while a task writes discards no published row."""
    run = world.run().batches([("a", 1)])
    run.write_offsets()
    run.tasks([("b", 1), ("c", 1)])
    place = tmp_path / FLIGHTS_QUERY.checkpoint
    place.parent.mkdir()
    (tmp_path / "checkpoint").rename(place)
    assert discarded_rows(tmp_path, FLIGHTS_QUERY) == 0
    place.rename(tmp_path / "checkpoint")
    world.run().publish([("b", 1), ("c", 1)], [("d", 1)])
    (tmp_path / "checkpoint").rename(place)
    assert discarded_rows(tmp_path, FLIGHTS_QUERY) == 3


def test_error_of_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """One command installs the extras of demo and stores."""
    monkeypatch.setitem(BUILTIN, "sql", BUILTIN["sql"]._replace(client=("no_such_client",)))
    _check_start(["delta"], Path("a.svg"))
    with pytest.raises(OptionError, match="needs no_such_client") as refused:
        _check_start(["delta", "sql"], Path("a.svg"))
    assert "pip install 'wal_sink[demo,delta,sql]'" in refused.value.remedy


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--picture", "nowhere/a.svg"], "--picture"),
        (["--picture", "a.doc"], "--picture"),
        (["--flights", "3"], "'--flights': Input should be greater than or equal to 240"),
        (["--target", "kafak"], "Did you mean kafka?"),
        (["--targets", "cassandra,redis"], "no target redis"),
        (["--targets", "cassandra,kafka"], "--target kafka"),
        (["--targets", "cassandra,cassandra"], "--targets"),
        (["--flight", "3000"], "--flight"),
        (["--failover", "--connect"], "--connect does not go with --failover"),
        (["--failover", "--target", "cassandra"], "--failover always writes to PostgreSQL"),
        (["--target", "sql", "--targets", "delta"], "--target does not go with --targets"),
    ],
)
def test_demo_option_that_would_fail_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert named in done.output


@pytest.mark.parametrize(
    ("ours", "control", "problem"),
    [
        ("abc", "abcx", None),
        ("abc", "abc", "these kills prove nothing"),
        ("ab", "abcx", "differ"),
        ("abcc", "abcx", "differ"),
    ],
)
def test_demo_report_names_what_a_run_does_not_prove(
    ours: str, control: str, problem: str | None
) -> None:
    """The tables of wal_sink and of the control should have the rows a, b and c."""
    comparisons = []
    for sink, rows in (("wal_sink", ours), ("foreachBatch", control)):
        counts = msgspec.structs.asdict(compare_rows("abc", rows))
        comparisons.append(Comparison(query="q", sink=sink, table="t", target="c", **counts))
    kill = KillOutcome(window="while a task writes", epoch=4, rows_discarded=1, seconds=1.0)
    problems = " ".join(report(comparisons, Stores([]), 1.0, kills=[kill]).problems)
    assert bool(problems) == bool(problem)
    assert (problem or "") in problems
