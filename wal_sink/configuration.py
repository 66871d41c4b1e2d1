"""Parses a query's options: those of the sink, its targets, and the places of checkpoint and log. No I/O."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from wal_sink.errors import OptionError
from wal_sink.model import paths
from wal_sink.options import (
    SinkOptions,
    json_pairs,
    lowered,
    marked,
    names,
    options_of,
    parse,
    public,
    qualified,
    refuse_repeated,
)
from wal_sink.protocol.retention import Retention
from wal_sink.targets.base import Target
from wal_sink.targets.registry import installed, is_installed, target_type
from wal_sink.unknown_names import refuse_others, refuse_removed, refuse_unknown
from wal_sink.wal.location import Location, is_folder, locate

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_SPARKS_OWN = "org.apache.spark.sql.execution.streaming."
"""Package of Spark's own file managers, which create a file only if it does not exist."""


class Destination(NamedTuple):
    """One of the targets that a query writes to."""

    name: str
    """Name of the target in the log. A single target has the name of its kind, such as `delta`."""
    prefix: str
    """Prefix of the target's options, one of the names in `targets`; empty for a single target."""
    kind: str
    """The value of option `target`."""
    target: Target

    @property
    def public(self) -> dict[str, str]:
        """The options of the target without secrets, as a user writes them."""
        options = {"target": self.kind, **public(self.target.options)}
        return {qualified(self.prefix, option): value for option, value in options.items()}


class Configuration(NamedTuple):
    """A query's options, parsed and checked. Spark pickles it and sends it to the tasks."""

    sink: SinkOptions
    destinations: tuple[Destination, ...]
    location: Location
    path: str = ""
    """The argument of `start(path)`, or the table of `toTable`. No row is written to this path, and a warning
    says so."""

    @property
    def several(self) -> bool:
        """True if the query has option `targets`, even with a single name."""
        return bool(self.destinations[0].prefix)

    def refuse_bucket(self, file_manager: str | None = None) -> None:
        """Refuse a checkpoint in which two drivers could overwrite each other's files.

        :param file_manager: the class by which Spark writes checkpoints; None for Spark's own class.
        :raises OptionError: two drivers could, and the user has not promised by `checkpoint.oneDriver` that
            one driver runs at a time. Two drivers could if the checkpoint is not in a folder, or if a class
            that is not Spark's own writes the checkpoint.
        """
        if not is_folder(self.location.checkpoint):
            where = self.location.checkpoint
            what = f"The checkpoint {where} is in a bucket, where Spark's rename is a copy."
            remedy = (
                "Put checkpointLocation into a folder that all hosts share, and wal.location into"
                " the bucket."
            )
        elif file_manager and not file_manager.startswith(_SPARKS_OWN):
            what = f"{FILE_MANAGER} is {file_manager}, by which Spark then writes the checkpoint."
            remedy = "Do not set it."
        else:
            return
        if not self.sink.one_driver:
            raise OptionError(
                f"{what} If two drivers run, the older one can overwrite what the newer one has written, and"
                " rows are written twice.",
                f"{remedy} Or make sure that a driver and all of its requests have ended before the next"
                ' driver starts; then add .option("checkpoint.oneDriver", "true").',
            )

    @property
    def public(self) -> dict[str, str]:
        """The options of the query without secrets, as the state of the log records them."""
        of_sink = public(self.sink)
        if self.several:
            of_sink["targets"] = ",".join(destination.name for destination in self.destinations)
            del of_sink["target"]
        return of_sink | {
            k: v for destination in self.destinations for k, v in destination.public.items()
        }

    def in_force(self, log: str) -> dict[str, str]:
        """Return the values in force as texts by heading, without secrets.

        :param log: URL of the query's log.
        """
        sink = self.sink
        then = "waits" if sink.on_full == "block" else "fails"
        lines = {
            qualified(destination.prefix, heading): text
            for destination in self.destinations
            for heading, text in destination.target.description.items()
        }
        lines |= {
            "log": log,
            "checkpoint": self.location.checkpoint,
            "budget": f"{sink.max_bytes:,} bytes of unflushed data (wal.maxBytes), then the next micro-batch"
            f" {then} (wal.onFull={sink.on_full})",
        }
        if sink.on_invalid_row == "quarantine":
            lines["refused rows"] = (
                "go into quarantine (onInvalidRow): wal-sink quarantine CHECKPOINT"
            )
        return lines


def retention_of(sink: SinkOptions) -> Retention:
    """Return how long flushed epochs stay in the log."""
    return Retention(us=round(sink.retention * 1_000_000), bytes=sink.max_bytes // 10)


def configure(raw: Mapping[str, str], folder: str | None = None) -> Configuration:
    """Parse options as Spark passes them: strings, under case-insensitive names.

    :param folder: the folder that a relative `wal.location` is resolved against; None for the current folder.
    :raises OptionError: an option is missing, unknown, or does not fit.
    """
    options = lowered(raw)
    if options.get("targets", "").strip():
        destinations = _destinations(raw)
    else:
        kind = options.get("target", "cassandra")
        known = [*names(SinkOptions), *names(target_type(kind).options_type)]
        _refuse_other_target(raw, known, 'Add .option("target", "{}") to write there')
        target = _target(kind, raw, names(SinkOptions))
        destinations = (Destination(target.name, "", kind, target),)
    sink = parse(raw, SinkOptions)
    location = locate(sink.checkpoint, sink.wal_location, folder, *storage_options(sink))
    return Configuration(sink, destinations, location, options.get("path", ""))


def _refuse_other_target(raw: Mapping[str, str], known: Iterable[str], remedy: str) -> None:
    """Refuse an option of a target that the query does not write to.

    :param known: names of the options of the sink and of the query's targets.
    :param remedy: how to write to the other target, with {} for its kind.
    :raises OptionError: there is such an option. The error names the option and its target.
    """
    prefixes = {name.partition(".")[0].lower() for name in known if "." in name}
    for option in raw:
        prefix, dot, _ = option.lower().partition(".")
        if dot and prefix not in prefixes and is_installed(prefix):
            raise OptionError(
                f"Option {option} is for target {prefix}, and the query writes to another target.",
                f"{remedy.format(prefix)}; otherwise leave the option out.",
            )


def _target(kind: str, raw: Mapping[str, str], known: Sequence[str] = ()) -> Target:
    """Make a target from its options.

    :param known: names of further options that are allowed.
    :raises OptionError: an option is missing, unknown, or does not fit.
    """
    declared = target_type(kind)
    refuse_others(raw, declared.options_type)
    refuse_unknown(raw, [*known, *names(declared.options_type)])
    return declared(parse(raw, declared.options_type))


def target_names(raw: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that option `targets` lists; an empty tuple without the option.

    :raises OptionError: a name is not allowed, or is listed twice.
    """
    listed = tuple(
        name.strip().lower() for name in lowered(raw).get("targets", "").split(",") if name.strip()
    )
    taken = {name.partition(".")[0].lower() for name in names(SinkOptions) if "." in name}
    for name in listed:
        if not re.fullmatch(paths.TARGET_NAME, name):
            raise OptionError(
                f"Option targets names {name!r}, which cannot be a name.",
                "Write a letter, then at most 23 letters, digits and underscores, such as orders or lake_2.",
            )
        if name in taken or is_installed(name):
            raise OptionError(
                f"Option targets names {name}, and other options begin with this name.",
                f"Choose another name, such as to_{name}, and begin the target's options with the new name.",
            )
    refuse_repeated("targets", listed)
    return listed


class TargetOptions(NamedTuple):
    """The options of one target of a query as texts. Nothing is parsed, and no module is imported."""

    prefix: str
    """Prefix of the options, one of the names in `targets`; empty for a single target."""
    kind: str
    """The value of option `target`, cassandra by default."""
    options: Mapping[str, str]
    """The options without the prefix, by name in lower case."""


def options_by_target(raw: Mapping[str, str]) -> list[TargetOptions]:
    """Return the options of each target that a query names.

    :raises OptionError: see `target_names`.
    """
    lower = lowered(raw)
    own = {prefix: options_of(prefix, lower) for prefix in target_names(lower) or ("",)}
    return [
        TargetOptions(prefix, options.get("target") or "cassandra", options)
        for prefix, options in own.items()
    ]


def _destinations(raw: Mapping[str, str]) -> tuple[Destination, ...]:
    """Make the targets that option `targets` names.

    :raises OptionError: an option is missing, unknown, or does not fit; or two targets write to the same
        table.
    """
    listed = target_names(raw)
    own = {name: options_of(name, raw) for name in listed}
    shared = {key: value for key, value in raw.items() if key.partition(".")[0].lower() not in own}
    kinds = {name: _kind(name, options) for name, options in own.items()}
    declared = {name: _declared(kind) for name, kind in kinds.items()}
    known = [name for name in names(SinkOptions) if name != "target"]
    _refuse_other_target(
        shared,
        [*known, *itertools.chain(*declared.values())],
        "Add a target of kind {} to option targets, and begin its options with its name and a dot",
    )
    known += [f"{name}.{option}" for name in own for option in declared[name]]
    refuse_unknown(shared, known, listed)
    refuse_removed(raw.keys() - shared.keys())
    destinations = tuple(_destination(name, kinds[name], own[name]) for name in listed)
    for first, second in itertools.combinations(destinations, 2):
        if _table_key(first) == _table_key(second):
            raise OptionError(
                f"Targets {first.name} and {second.name} are the same table, {first.target.writes_to}.",
                "Each row would be written twice. Leave one of these targets out.",
            )
    return destinations


def _kind(name: str, raw: Mapping[str, str]) -> str:
    """Return the kind of one of several targets.

    :raises OptionError: the target's option `target` is missing.
    """
    kind = lowered(raw).get("target", "").strip()
    if not kind:
        raise OptionError(
            f"Option {name}.target is missing.",
            f'Add .option("{name}.target", …): {", ".join(installed())}, or module:Class of your own.',
        )
    return kind


def _declared(kind: str) -> Collection[str]:
    """Return the options of one of several targets: `target`, and the options of its kind, if installed."""
    return ("target", *(names(target_type(kind).options_type) if is_installed(kind) else ()))


def _destination(name: str, kind: str, raw: Mapping[str, str]) -> Destination:
    own = {key: value for key, value in raw.items() if key.lower() != "target"}
    try:
        return Destination(name, name, kind, _target(kind, own))
    except OptionError as error:
        raise OptionError(
            f"Target {name}: {error.what}", f"Its options begin with {name}. {error.remedy}"
        ) from error


def _table_key(destination: Destination) -> tuple[object, ...]:
    """Return a key of the target's table. Two destinations with equal keys write to the same table."""
    options = destination.target.options
    where = [getattr(options, field) for field in sorted(marked(type(options), "connects"))]
    return destination.kind, destination.target.writes_to, *map(str, where)


def storage_options(
    sink: SinkOptions,
) -> tuple[dict[str, object] | None, dict[str, object] | None]:
    """Parse the storage options of log and checkpoint, for `locate`; None for an option that is not given.

    :raises OptionError: an option is not a JSON object. The error does not show the option's value, since the
        value may contain keys.
    """
    return (
        _store_options("wal.storageOptions", sink.storage_options),
        _store_options("checkpoint.storageOptions", sink.checkpoint_storage_options),
    )


def _store_options(option: str, text: str) -> dict[str, object] | None:
    if not text.strip():
        return None
    json_pairs(option, text, f'{option}={{"endpoint_url": "…", "key": "…"}}', secret=True)
    options: dict[str, object] = json.loads(text)
    return options
