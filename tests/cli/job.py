"""A query over SQLite tables, and its commands, which run in the process of the test."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from sqlite_target import SqliteOptions, SqliteTarget
from state_backends import open_backend
from tests.cli.shell import Done, run
from tests.protocol.engine import World
from wal_sink.protocol.retention import Retention
from wal_sink.targets.base import Target

HOUR = Retention(us=3_600_000_000, bytes=1 << 30)
KIND = "sqlite_target:SqliteTarget"


class Job(World):
    """A query into the table `t`, or into several tables.

    :param folder: the folder for `checkpoint` and `shop.db`.

    :param names: the names of several targets and of their tables.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.names, self.place = folder, names, "checkpoint"
        self.kind = KIND
        with sqlite3.connect(self.database) as connection:
            for name in names or ("t",):
                connection.execute(f"CREATE TABLE {name} (k TEXT, v INTEGER)")
        connection.close()
        checkpoint = open_backend(str(folder / "checkpoint"))
        super().__init__(checkpoint, checkpoint, self.table_target(names[0] if names else "t"))
        self.log_backend = open_backend(str(folder / "checkpoint" / "wal_sink" / self.query_id))
        self.clock.us = time.time_ns() // 1_000
        self.retention = HOUR

    @property
    def database(self) -> Path:
        """The file with the tables."""
        return self.folder / "shop.db"

    def table_target(self, table: str) -> Target:
        """Return the target of a table."""
        return SqliteTarget(SqliteOptions(path=str(self.database), table=table))

    @property
    def targets(self) -> dict[str, Target]:
        """The targets by name."""
        if not self.names:
            return super().targets
        return {name: self.table_target(name) for name in self.names}

    @property
    def options(self) -> dict[str, str]:
        """The options of a run."""
        own = {"wal.retention": str(self.retention.us // 1_000_000)}
        if not self.names:
            return own | {"target": self.kind, "sqlite.path": str(self.database), "table": "t"}
        own["targets"] = ",".join(self.names)
        for name in self.names:
            own |= {
                f"{name}.target": self.kind,
                f"{name}.sqlite.path": str(self.database),
                f"{name}.table": name,
            }
        return own

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement in the database, and return its rows."""
        with sqlite3.connect(self.database) as connection:
            rows = connection.execute(statement).fetchall()
        connection.close()
        return rows

    def rows(self, table: str = "t") -> list[tuple[object, ...]]:
        """Return the rows of a table, also doubled rows."""
        return self.execute(f"SELECT k, v FROM {table} ORDER BY v, k")

    def command(self, verb: str, *arguments: object, answer: str | None = None) -> Done:
        """Run `wal-sink VERB CHECKPOINT … --json`.

        :param answer: the text on standard input; None for an empty input.
        """
        kinds = [f"{name}.target" for name in self.names] or ["target"]
        options = [text for kind in kinds for text in ("--option", f"{kind}={self.kind}")]
        settings = [verb, str(self.folder / self.place), *map(str, arguments), *options, "--json"]
        return run(self.folder, *settings, answer=answer)

    def refused(self, verb: str, *arguments: object) -> tuple[int, str]:
        """Run a command that fails; return its exit code and the name of its error."""
        done = self.command(verb, *arguments)
        return done.code, done.document["error"]

    def move(self, place: str) -> None:
        """Rename the folder of the checkpoint, which contains the log."""
        (self.folder / self.place).rename(self.folder / place)
        self.use(place)

    def use(self, place: str) -> None:
        """Continue with another checkpoint."""
        self.place = place
        self.checkpoint = open_backend(str(self.folder / place))
        self.log_backend = open_backend(str(self.folder / place / "wal_sink" / self.query_id))


def rows_of(*epochs: int) -> list[tuple[object, ...]]:
    """Return the rows of some epochs of the fixture `job`."""
    return [(f"{name}{epoch}", epoch) for epoch in epochs for name in "ab"]


def batches(job: Job, *epochs: int) -> None:
    """Start a run, and let it complete epochs with two rows each."""
    run = job.run()
    for epoch in epochs:
        assert run.batch([(f"a{epoch}", epoch)], [(f"b{epoch}", epoch)]) == epoch
