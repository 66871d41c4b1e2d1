"""What a started query was given, as plain values."""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """A source of a query, as Spark has it."""

    kind: str
    """Its class, without the package."""
    description: str
    """As in Spark's progress events."""


class StartedQuery(NamedTuple):
    """What a started query was given, as plain values, so that nothing asks Spark later."""

    query_id: str
    options: dict[str, str]
    """As given, but `checkpointLocation` as Spark resolved it."""
    folder: str
    """Current folder of the JVM, and so of its Python workers; the driver's Python may have left it."""
    sources: tuple[Source, ...] = ()
