"""Options and commands that no longer exist, with what to use instead. `tests/test_removed.py` tries each."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from wal_sink.errors import OptionError

_TOTALS = "Aggregate in Spark, and upsert the totals by `wal_sink.batch_writer` in update mode."
_SEVERAL_TABLES = "Name the tables by option targets; or write each by a filtered query of its own."

OPTIONS: dict[str, str] = {
    "<name>.onFull": "Set wal.onFull, for the query. A target that is dead: `wal-sink give-up CHECKPOINT"
    " --target NAME`.",
    "cassandra.addColumns": _TOTALS,
    "cassandra.addColumnsAfter": _TOTALS,
    "cassandra.collections": "Write the whole collection: it replaces what the row has.",
    "cassandra.ifNotExists": "Drop duplicates in the query: `dropDuplicates`.",
    "tableColumn": _SEVERAL_TABLES,
    "tables": _SEVERAL_TABLES,
}
"""What to use instead, by option. A row also refuses what is below it: `cassandra.addColumns.price`. In a
row, `<name>` stands for the name of one of several targets."""

_EXPORT = (
    "Export the rows by `wal-sink quarantine CHECKPOINT --export FILE`, repair them, and write them by a"
    " query of your own."
)
_TARGETS = (
    "Change the option targets at a restart, once `wal-sink status CHECKPOINT` shows no lag. A target that is"
    " dead: `wal-sink give-up CHECKPOINT --target NAME`."
)

COMMANDS: dict[str, str] = {
    "adopt --original-is-gone": "Answer yes to `wal-sink adopt CHECKPOINT`: it looks for no other copy.",
    "adopt --target": "Leave it out: the command binds the ledger rows of all targets.",
    "adopt --why": "Leave it out: the log keeps no reason.",
    "attach": _TARGETS,
    "check --parquet": "Use `wal_sink.check(df, **options)` in Python.",
    "check --schema": "Use `wal_sink.check(df, **options)` in Python.",
    "detach": _TARGETS,
    "inspect": "Use `wal-sink show CHECKPOINT`, or `wal-sink show CHECKPOINT EPOCH`.",
    "new-target": "Copy examples/sqlite_target.py of the repository; the page Targets has the steps.",
    "quarantine --retry": _EXPORT,
    "quarantine --target": "Leave it out: the list names the target that refused each row.",
    "reset": "Stop the query, and delete its checkpoint folder and its log folder by `rm -r`:"
    " `wal-sink status CHECKPOINT` names both, and says whether that loses rows.",
    "rewind": "A target that went back is brought forward by itself, as long as wal.retention has the epochs."
    " Else name the epoch that it has: `wal-sink set-mark CHECKPOINT --to EPOCH`.",
    "skip": "Use `wal-sink give-up CHECKPOINT --epoch EPOCH`: the files of the epoch stay in the log.",
    "verify": "Use `wal-sink status CHECKPOINT --deep`.",
}
"""What to use instead, by command, or by command and flag."""


def refuse_removed(options: Collection[str]) -> None:
    """Refuse an option that no longer exists.

    :param options: names that no present option has, as a user writes them.
    :raises OptionError: says what to use instead.
    """
    for row, instead in OPTIONS.items():
        pattern = re.compile(re.escape(row).replace("<name>", "[^.]+") + r"(\..*)?", re.IGNORECASE)
        for option in filter(pattern.fullmatch, options):
            raise OptionError(f"Option {option} no longer exists.", instead)


def removed_command(command: str, arguments: Sequence[str] = ()) -> OptionError | None:
    """Return the error for a command or a flag that no longer exists; None if both exist.

    :param arguments: the arguments after the command.
    """
    flags = {argument.partition("=")[0] for argument in arguments}
    for row, instead in COMMANDS.items():
        name, _, flag = row.partition(" ")
        if name == command and (not flag or flag in flags):
            return OptionError(f"`wal-sink {row}` no longer exists.", instead)
    return None
