"""The table of types as README.md prints it."""

from __future__ import annotations

from wal_sink.targets.cassandra.types.mapping import NESTED, TYPES


def types_table() -> str:
    """Return a table in Markdown: each CQL type, what goes to it, what the log holds."""
    rows = [
        ("CQL", "from Spark", "in the log", "notes"),
        ("---", "---", "---", "---"),
        *((f"`{name}`", ", ".join(of.accepts), of.log, of.note) for name, of in TYPES.items()),
        *(
            (f"`{name}`" if name != "udt" else "user-defined", of.accepts, of.log, of.note)
            for name, of in NESTED.items()
        ),
    ]
    lines = ("| " + " | ".join(cells) + " |" for cells in rows)
    return "\n".join(line.replace("  |", " |").replace("| --- ", "|---") for line in lines) + "\n"
