"""SIGKILL in every window of a micro-batch's life, with real Spark and real Cassandra."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.kills.victims import (
    At,
    ByBothApis,
    Control,
    Forgetful,
    InJob,
    Read,
    Repeatedly,
    Updating,
    Victim,
    WithoutRows,
)
from wal_sink.demo.cassandra import Node
from wal_sink.demo.local_spark import Driver
from wal_sink.demo.pauses import PAUSES, pauses

Deaths = Mapping[str, tuple[type[Victim], dict[int, At]]]
"""Each query by the name of its table, and where it pauses at each kill that hits it, by the number of the
kill."""

AFTER_THE_MANIFEST = {1: At("commit returned", 1), 2: At("commit called", 2), 3: At("flushing", 2)}
BEFORE_IT = {1: At("write", 1), 2: At("commit returned", 2), 3: At("committed", 2)}
ONCE: Deaths = {
    "replay": (WithoutRows, {1: At("commit returned", 1)}),
    "read": (Read, {1: At("flushing", 1)}),
    "control": (Control, {1: At("commit returned", 1)}),
}
ONE_KILL: Deaths = {
    "one": (Forgetful, {1: At("write", 1)}),
    "two": (ByBothApis, {1: At("commit called", 1)}),
    "three": (Updating, {1: At("commit returned", 1)}),
    "four": (Forgetful, {1: At("committed", 0)}),  # a later epoch may not begin a window
    **ONCE,
}
# The flush job is hit by the last kill. Its tasks hold all slots but one, so no other task may pause.
THRICE: Deaths = {
    "one": (Forgetful, BEFORE_IT),
    "two": (Repeatedly, {1: At("commit called", 1), 2: At("write", 2), 3: At("flushing", 2)}),
    "three": (Forgetful, AFTER_THE_MANIFEST),
    "four": (Updating, BEFORE_IT),
    "five": (ByBothApis, AFTER_THE_MANIFEST),
    **ONCE,
    "job": (InJob, {3: At("flushing", 1)}),
}


@pytest.mark.spark
@pytest.mark.cassandra
@pytest.mark.slow_first
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "deaths"),
    [
        pytest.param(1, ONE_KILL, id="one kill"),
        pytest.param(3, THRICE, id="three kills", marks=pytest.mark.test_all),
    ],
)
def test_driver_killed_in_every_window_loses_nothing(
    cassandra: Node, keyspace: str, tmp_path: Path, kills: int, deaths: Deaths
) -> None:
    """Each kill of the driver hits several queries, and each window of a micro-batch is hit at least once.

    After one kill Spark starts the epoch again, after another kill the flusher does. Forgetful queries retain
    one batch only.
    """
    queries = {
        name: kind(cassandra, keyspace, tmp_path, name, where)
        for name, (kind, where) in deaths.items()
    }
    for number in range(1, kills + 1):
        # The query of the flush job starts late, since it would have ended before its kill.
        die([victim for victim in queries.values() if may_run(victim, number)], number, tmp_path)
    victims = list(queries.values())
    with application(victims, kills + 1, tmp_path) as last:
        last.finish()
    for victim in victims:
        victim.check()


def may_run(victim: Victim, number: int) -> bool:
    """Return True if a query is started before the kill `number`."""
    return not isinstance(victim, InJob) or number in victim.deaths


def die(victims: Sequence[Victim], number: int, folder: Path) -> None:
    """Start the application, SIGKILL it when every query pauses at its point, and check what is visible."""
    with application(victims, number, folder) as driver:
        driver.reach(lambda: all(victim.is_there(number) for victim in victims))
        driver.kill()
    for victim in victims:
        if number in victim.deaths:
            victim.look(number)


def application(victims: Sequence[Victim], number: int, folder: Path) -> Driver:
    """Start the application for the `number`-th time."""
    config = {
        "settings": {
            "spark.master": "local[4]",
            # Forgetful queries count what is left. Spark reads this setting late, so all queries have it.
            "spark.sql.streaming.asyncLogPurge.enabled": "false",
        },
        "queries": [victim.config(number) for victim in victims],
    }
    file = folder / f"config-{number}.json"
    file.write_text(json.dumps(config))
    where = [pause for victim in victims if (pause := victim.pause(number))]
    return Driver(
        ["-m", "tests.spark.app", str(file)],
        folder / f"output-{number}",
        {PAUSES: pauses(*where)},
        folder=Path(__file__).parents[2],
    )
