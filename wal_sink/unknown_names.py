"""Refuses names of options and commands that do not exist, and suggests what to use instead.

Such a name is misspelt, or belongs to another target or client of the database, or was removed from wal_sink.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from wal_sink.errors import OptionError
from wal_sink.options import SPARK_OPTIONS, Options, named, names


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name nearest to `name`; empty if no name is near."""
    known = sorted(known)
    for other in known:
        if other.lower() == name.lower():
            return f"There is {other}, which differs in upper and lower case only: names are exact."
    by_lower = {other.lower(): other for other in known}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[nearest[0]]}?" if nearest else ""


_NO_DELETES = (
    "Leave it out, and filter deletes out of the DataFrame. Or write each delete as a row that a column marks"
    " as deleted. Or write to a target that deletes, such as cassandra or postgresql."
)
_OF_OTHER_TARGETS = {
    "operationColumn": _NO_DELETES,
    "operations": _NO_DELETES,
    "unavailableValue": "Leave it out, and the text is written as it is; or write to a target that replaces"
    " rows by their key, such as cassandra or postgresql.",
}
"""The remedies for options of targets that delete rows. Any other target lacks these options."""


def refuse_others(raw: Mapping[str, str], struct: type[Options]) -> None:
    """Refuse options that other clients of the database, or other targets, have, and this target lacks.

    :raises OptionError: there are such options. The error says for each of them what to do.
    """
    declared = {name.lower() for name in names(struct)}
    others = {
        name.lower(): instead
        for name, instead in {**_OF_OTHER_TARGETS, **struct.others}.items()
        if name.lower() not in declared
    }
    instead = {key: others[key.lower()] for key in raw if key.lower() in others}
    if instead:
        one = len(instead) == 1
        remedies = instead.values() if one else (f"{k}: {v}" for k, v in instead.items())
        raise OptionError(
            f"Option{'' if one else 's'} {', '.join(instead)}: other clients or targets have"
            f" {'it' if one else 'them'}, and this target does not.",
            " ".join(remedies),
        )


def refuse_unknown(
    raw: Mapping[str, str], known: Iterable[str], targets: Sequence[str] = ()
) -> None:
    """Refuse an option in `raw` that is neither known nor Spark's own.

    :param targets: the names in option `targets`; empty for a single target.
    :raises OptionError: there is such an option. The error names the nearest known option, or what replaces
        an option that no longer exists.
    """
    explained = {name.lower(): name for name in known}
    by_lower = explained | {name.lower(): name for name in SPARK_OPTIONS}
    unknown = [key for key in raw if named(key, by_lower.values()) is None]
    if not unknown:
        return
    refuse_removed(unknown)
    near = {key: [by_lower[name] for name in _nearest(key.lower(), by_lower)] for key in unknown}
    if targets and not any("." in key or near[key] for key in unknown):
        remedy = (
            "The options of a target begin with its name. If a target has such an option, write"
            f" {targets[0]}.{unknown[0]}; otherwise leave it out."
        )
    elif not any(near.values()):
        remedy = f"Known options: {', '.join(sorted(explained.values()))}."
    elif len(unknown) == 1:
        remedy = f"Did you mean {' or '.join(near[unknown[0]])}?"
    else:
        meant = (f"{key}: {' or '.join(hints) or 'leave it out'}" for key, hints in near.items())
        remedy = f"Write instead of {'; '.join(meant)}."
    raise OptionError(f"Unknown option{'s' * (len(unknown) > 1)} {', '.join(unknown)}.", remedy)


_OF_JDBC = {
    "url": ("postgresql.uri", "sql.url"),
    "user": ("postgresql.uri", "sql.url", "cassandra.username"),
    "driver": ("sql.url",),
    "dbtable": ("table",),
}
"""The sink's names for options of Spark's JDBC writer, which `_nearest` would not find by their letters."""


def _nearest(typed: str, known: Collection[str]) -> list[str]:
    """Return the known names that the user of a misspelt name may mean.

    If known names begin with the same part, such as `kafka.`, return the nearest of these names, or nothing.
    Otherwise return the names with the same last part, such as `cassandra.ttl` for `ttl`, since users of
    another sink know this part. If there are none, return the nearest name. A short word must have more
    letters in common with a name, because many names are near to a short word.
    """
    prefix = typed.partition(".")[0] + "."
    if same := {name.removeprefix(prefix): name for name in known if name.startswith(prefix)}:
        near = difflib.get_close_matches(typed.removeprefix(prefix), same, n=1, cutoff=0.6)
        return [same[option] for option in near]
    last: dict[str, list[str]] = {}
    for name in known:
        last.setdefault(name.rpartition(".")[2], []).append(name)
    part = typed.rpartition(".")[2]
    if part in last:
        return sorted(last[part])
    if typed in _OF_JDBC:
        return [name for name in _OF_JDBC[typed] if name in known]
    whole = difflib.get_close_matches(typed, known, n=1, cutoff=0.5 if len(typed) > 5 else 0.75)
    parts = difflib.get_close_matches(part, last, n=1, cutoff=0.8)
    return whole or (sorted(last[parts[0]]) if parts else [])


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
"""The remedies for options that no longer exist, by option. A name also matches each longer name that begins
with it and a dot, such as `cassandra.addColumns.price`. In a name, `<name>` is the name of one of several
targets."""

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
"""The remedies for commands and flags that no longer exist, by command, or by command and flag."""


def refuse_removed(options: Collection[str]) -> None:
    """Refuse an option that no longer exists.

    :param options: names that no present option has, as a user writes them.
    :raises OptionError: there is such an option. The error says what to use instead.
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
