"""Options and commands that no longer exist, with what to use instead.

A row has a name and a way out, in one line. To remove something is to delete it and to add its row here. The
tests in `tests/test_removed.py` try each row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

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
"""Way out by option. `cassandra.addColumns` is also `cassandra.addColumns.price`. A row `option=value` is one
value of an option that stays; `<name>` stands for the name of one of several targets."""

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
    "attach": _TARGETS,
    "check --parquet": "Use `wal_sink.check(df, **options)` in Python.",
    "check --schema": "Use `wal_sink.check(df, **options)` in Python.",
    "detach": _TARGETS,
    "inspect": "Use `wal-sink show CHECKPOINT`, or `wal-sink show CHECKPOINT EPOCH`.",
    "new-target": "Copy examples/sqlite_target.py of the repository; the page Targets has the steps.",
    "quarantine --retry": _EXPORT,
    "reset": "Stop the query, and delete its checkpoint folder and its log folder by `rm -r`:"
    " `wal-sink status CHECKPOINT` names both, and says whether that loses rows.",
    "rewind": "A target that went back is brought forward by itself, as long as wal.retention has the epochs."
    " Else name the epoch that it has: `wal-sink set-mark CHECKPOINT --to EPOCH`.",
    "skip": "Use `wal-sink give-up CHECKPOINT --epoch EPOCH`: the files of the epoch stay in the log.",
    "verify": "Use `wal-sink status CHECKPOINT --deep`.",
}
"""Way out by command, or by command and flag: `quarantine --retry`."""


def refuse_removed(options: Mapping[str, str], known: Collection[str] = ()) -> None:
    """Refuse an option that no longer exists, or a value that an option no longer takes.

    :param options: options as a user writes them, by name.
    :param known: those of them that exist, of which only the values are compared.
    :raises OptionError: names the way out.
    """
    for row, instead in OPTIONS.items():
        name, is_value, value = row.partition("=")
        pattern = re.compile(re.escape(name).replace("<name>", "[^.]+") + r"(\..*)?", re.IGNORECASE)
        for option, written in options.items():
            if not pattern.fullmatch(option):
                continue
            if is_value and written.strip().lower() == value.lower():
                raise OptionError(f"Option {option} no longer takes {value}.", instead)
            if not is_value and option not in known:
                raise OptionError(f"Option {option} no longer exists.", instead)


def removed_command(command: str, arguments: Sequence[str] = ()) -> OptionError | None:
    """Return the error of a command or a flag that no longer exists; None: neither is removed.

    :param arguments: what follows the command.
    """
    flags = {argument.partition("=")[0] for argument in arguments}
    for row, instead in COMMANDS.items():
        name, _, flag = row.partition(" ")
        if name == command and (not flag or flag in flags):
            return OptionError(f"`wal-sink {row}` no longer exists.", instead)
    return None
