"""Reports what the demo found: the values behind its table, its JSON and its exit code."""

from __future__ import annotations

import msgspec

from wal_sink.demo.kills import KILLS, Window
from wal_sink.demo.queries import CONTROL
from wal_sink.testing.oracle import Verdict


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """One SIGKILL."""

    window: Window
    """Which one was hit, read from what was durable afterwards."""
    epoch: int
    rows_discarded: int
    """Rows that were logged and not checkpointed: thrown away and computed again. Those that only the memory
    of a task had do not count."""
    seconds: float
    """From when the demo began to watch, right before the application's first start, to the SIGKILL."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A table beside its source, counted in rows."""

    query: str
    sink: str
    table: str
    target: str
    expected: int
    found: int
    missing: int
    extra: int
    examples: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome; the first four numbers are of the tables that wal_sink wrote, together."""

    expected: int
    found: int
    missing: int
    extra: int
    control_extra: int
    """Ghosts or doubles in the control's table."""
    seconds: float
    kills: tuple[Death, ...]
    tables: tuple[Comparison, ...]
    picture: str
    """Path of the picture."""
    target: str
    server: str
    """Which one, or which ones, the rows went to."""

    @property
    def problems(self) -> list[str]:
        """What keeps the demo from having shown what it is for; empty when it has."""
        problems = []
        if self.missing or self.extra or not self.expected:
            ours = (table for table in self.tables if table.sink == "wal_sink")
            examples = [text for table in ours for text in table.examples]
            problems.append(
                "\n  ".join(["The tables differ from the source, for example:", *examples])
            )
        if not self.control_extra:
            problems.append("The control has no extra rows: these kills proved nothing.")
        hit = {death.window for death in self.kills}
        if missed := [kill.window for kill in KILLS if kill.window not in hit]:
            problems.append(f"No kill hit the driver {', nor '.join(missed)}.")
        return problems


def report(
    comparisons: list[Comparison],
    deaths: list[Death],
    seconds: float,
    picture: str,
    *,
    target: str,
    server: str,
) -> Report:
    """Add up the tables that wal_sink wrote."""
    ours = [c for c in comparisons if c.sink == "wal_sink"]
    return Report(
        expected=sum(c.expected for c in ours),
        found=sum(c.found for c in ours),
        missing=sum(c.missing for c in ours),
        extra=sum(c.extra for c in ours),
        control_extra=next(c.extra for c in comparisons if c.table == CONTROL.table),
        seconds=round(seconds, 1),
        kills=tuple(deaths),
        tables=tuple(comparisons),
        picture=picture,
        target=target,
        server=server,
    )


def comparison(query: str, sink: str, table: str, verdict: Verdict, target: str) -> Comparison:
    """Return the oracle's verdict on one table as a row of the report."""
    counts = {**verdict._asdict(), "examples": tuple(map(str, verdict.examples))}
    return Comparison(query=query, sink=sink, table=table, target=target, **counts)
