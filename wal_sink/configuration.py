"""Turns the options of a `writeStream` into all that the sink works with; no I/O."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from wal_sink.errors import OptionError
from wal_sink.model import paths
from wal_sink.options import (
    SPARK_OPTIONS,
    Options,
    SinkOptions,
    lowered,
    marked,
    names,
    options_of,
    parse,
    public,
    qualified,
    refuse_others,
    refuse_unknown,
)
from wal_sink.protocol.retention import Retention
from wal_sink.removed import refuse_removed
from wal_sink.targets.base import Target
from wal_sink.targets.operations import json_pairs, refuse_undeclared
from wal_sink.targets.registry import installed, is_installed, reduced, target_type
from wal_sink.targets.table_options import refuse_repeated
from wal_sink.wal.location import Location, is_folder, locate

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_SPARKS_OWN = "org.apache.spark.sql.execution.streaming."
"""Package of the classes that look for a file, and rename theirs into its place."""


class Destination(NamedTuple):
    """One of the targets that a query writes to, and its options."""

    name: str
    """Its name in the log. A single target is called as its kind."""
    prefix: str
    """Begins its options: its name, or nothing for a single target."""
    kind: str
    """As option `target` says."""
    options: Options
    target: Target

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle so that a worker which lacks the target's module says so."""
        return reduced(type(self), tuple(self), self.target)

    @property
    def public(self) -> dict[str, str]:
        """Its options without secrets, as a user writes them."""
        options = {"target": self.kind, **public(self.options)}
        return {qualified(self.prefix, option): value for option, value in options.items()}


class Configuration(NamedTuple):
    """A query's options, parsed and checked. Pickles, because it travels to the tasks."""

    sink: SinkOptions
    destinations: tuple[Destination, ...]
    location: Location
    path: str = ""
    """Of `start(path)`, which Spark passes on, or the table of `toTable`; no row goes there."""

    @property
    def several(self) -> bool:
        """True if the query names its targets by option `targets`, even a single one."""
        return bool(self.destinations[0].prefix)

    @property
    def retention(self) -> Retention:
        """How long flushed epochs stay in the log."""
        return retention_of(self.sink)

    def refuse_bucket(self, file_manager: str | None = None) -> None:
        """Refuse a checkpoint in which two drivers overwrite each other's files.

        :param file_manager: the class that Spark is told to write checkpoints by; None: none.
        :raises OptionError: it is not in a folder, or written by a class that is not Spark's, and the user
            has not said that there never are two.
        """
        if not is_folder(self.location.checkpoint):
            where = self.location.checkpoint
            what = f"The checkpoint {where} is in a bucket, where Spark's rename is a copy."
            remedy = (
                "Put checkpointLocation into a folder that all hosts share, and wal.location into"
            )
            remedy += " the bucket."
        elif file_manager and not file_manager.startswith(_SPARKS_OWN):
            what = f"{FILE_MANAGER} is {file_manager}, by which Spark then writes the checkpoint."
            remedy = "Do not set it."
        else:
            return
        if not self.sink.one_driver:
            raise OptionError(
                f"{what} Of two drivers the older one can overwrite what the newer one has written, and rows"
                " would come twice.",
                f"{remedy} Or make sure that a driver has ended, and each request of it, before the next one"
                ' starts: then add .option("checkpoint.oneDriver", "true").',
            )

    @property
    def target(self) -> Target:
        """The target, or the first of several."""
        return self.destinations[0].target

    @property
    def target_options(self) -> Options:
        """Its options."""
        return self.destinations[0].options

    @property
    def public(self) -> dict[str, str]:
        """The options without secrets, as the state of the log records them."""
        of_sink = public(self.sink)
        if self.several:
            of_sink["targets"] = ",".join(destination.name for destination in self.destinations)
            del of_sink["target"]
        return of_sink | {
            k: v for destination in self.destinations for k, v in destination.public.items()
        }

    def in_force(self, log: str) -> dict[str, str]:
        """Return what the options mean, by heading; without secrets.

        :param log: URL of the query's log.
        """
        sink = self.sink
        then = "waits" if sink.on_full == "block" else "fails"
        refused = {
            "refused rows": "go into quarantine (onInvalidRow): wal-sink quarantine CHECKPOINT"
        }
        return {
            **{
                qualified(destination.prefix, heading): text
                for destination in self.destinations
                for heading, text in destination.target.description.items()
            },
            "log": log,
            "checkpoint": self.location.checkpoint,
            "budget": f"{sink.max_bytes:,} bytes of unflushed data (wal.maxBytes), then the next micro-batch"
            f" {then} (wal.onFull={sink.on_full})",
            **(refused if sink.on_invalid_row == "quarantine" else {}),
        }


def retention_of(sink: SinkOptions) -> Retention:
    """Return how long flushed epochs stay in the log."""
    return Retention(us=round(sink.retention * 1_000_000), bytes=sink.max_bytes // 10)


def configure(raw: Mapping[str, str], folder: str | None = None) -> Configuration:
    """Parse options as Spark passes them: strings, under case-insensitive names.

    :param folder: against which a relative `wal.location` counts; None for the current one.
    :raises OptionError: an option is missing, unknown, or does not fit.
    """
    options = lowered(raw)
    if options.get("targets", "").strip():
        destinations = several(raw)
    else:
        kind = options.get("target", "cassandra")
        target = _target(kind, raw, names(SinkOptions), is_installed)
        destinations = (Destination(target.name, "", kind, target.options, target),)
    sink = parse(raw, SinkOptions)
    location = locate(sink.checkpoint, sink.wal_location, folder, *storage_options(sink))
    return Configuration(sink, destinations, location, options.get("path", ""))


def _target(
    kind: str,
    raw: Mapping[str, str],
    known: Sequence[str] = (),
    is_target: Callable[[str], bool] = lambda _: False,
) -> Target:
    """Make a target by its options.

    :param known: names of further options that there may be.
    :param is_target: see `refuse_unknown`.
    :raises OptionError: an option is missing, unknown, or does not fit.
    """
    declared = target_type(kind)
    refuse_undeclared(lowered(raw), declared.name, declared.options_type)
    refuse_others(raw, declared.options_type)
    refuse_unknown(raw, [*known, *names(declared.options_type)], is_target)
    return declared(parse(raw, declared.options_type))


def target_names(raw: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that option `targets` lists; none without it.

    :raises OptionError: one cannot be a name, or comes twice.
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
                f"Option targets names {name}, with which other options begin.",
                f"Choose another name, such as to_{name}, and begin its options with that.",
            )
    refuse_repeated("targets", listed)
    return listed


class TargetOptions(NamedTuple):
    """The options of one of a query's targets, as they are written; nothing is parsed or imported."""

    prefix: str
    """Begins them: the target's name, or nothing for a single target."""
    kind: str
    """As option `target` says, cassandra by default."""
    options: Mapping[str, str]
    """Without the prefix, by names in lower case."""


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


def several(raw: Mapping[str, str]) -> tuple[Destination, ...]:
    """Parse the options of several targets.

    :raises OptionError: one is missing, unknown, or does not fit; or two targets are one table.
    """
    listed = target_names(raw)
    own = {name: options_of(name, raw) for name in listed}
    shared = {key: value for key, value in raw.items() if key.partition(".")[0].lower() not in own}
    known = [name for name in names(SinkOptions) if name != "target"]
    _refuse_unnamed(shared, known, own)
    refuse_removed({key: value for key, value in raw.items() if key not in shared})
    destinations = tuple(_destination(name, own[name]) for name in listed)
    for one, other in itertools.combinations(destinations, 2):
        if _place(one) == _place(other):
            raise OptionError(
                f"Targets {one.name} and {other.name} are the same table, {one.target.writes_to}.",
                "Each row would be written there twice. Leave one of them out.",
            )
    return destinations


def _refuse_unnamed(
    shared: Mapping[str, str], known: Collection[str], own: Mapping[str, Mapping[str, str]]
) -> None:
    """Refuse what is neither an option of the sink nor begins with the name of a target."""
    lower = {name.lower() for name in known}
    refuse_removed(shared, [key for key in shared if key.lower() in lower])
    for key in shared:
        first, dot, _ = key.partition(".")
        if key.lower() in lower or (dot and not is_installed(first.lower())):
            continue  # an unknown one with a dot is refused below, with the nearest name
        if key.lower() not in {name.lower() for name in SPARK_OPTIONS}:
            meant = [
                f"{name}.{option}"
                for name, own_options in own.items()
                for option in _options_of_kind(own_options)
                if option.lower() == key.lower()
            ]
            raise OptionError(
                f"Option {key} belongs to no target: option targets is {', '.join(own)}.",
                f"Write the name of the target first: {' or '.join(meant)}."
                if meant
                else "None of these targets has such an option. Leave it out.",
            )
    refuse_unknown(shared, [*known, *(f"{name}.target" for name in own)])


def _options_of_kind(options: Mapping[str, str]) -> Collection[str]:
    """Return what one of several targets has for options, as far as its kind is known."""
    kind = lowered(options).get("target", "").strip()
    return (
        "target",
        *(names(target_type(kind).options_type) if is_installed(kind) else ()),
    )


def _destination(name: str, raw: Mapping[str, str]) -> Destination:
    kind = lowered(raw).get("target", "").strip()
    if not kind:
        raise OptionError(
            f"Option {name}.target is missing.",
            f'Add .option("{name}.target", …): {", ".join(installed())}, or module:Class of your own.',
        )
    own = {key: value for key, value in raw.items() if key.lower() != "target"}
    try:
        target = _target(kind, own)
        return Destination(name, name, kind, target.options, target)
    except OptionError as error:
        raise OptionError(
            f"Target {name}: {error.what}", f"Its options begin with {name}. {error.remedy}"
        ) from error


def _place(destination: Destination) -> tuple[object, ...]:
    """Return what tells the table of a target from others: two that are equal are one."""
    declared = destination.options
    where = [getattr(declared, field) for field in sorted(marked(type(declared), "connects"))]
    return destination.kind, destination.target.writes_to, *map(str, where)


def storage_options(
    sink: SinkOptions,
) -> tuple[dict[str, object] | None, dict[str, object] | None]:
    """Parse the storage options of log and checkpoint, for `locate`; None where an option is not given.

    :raises OptionError: one is not a JSON object. Its text is not shown: there are keys in it.
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
