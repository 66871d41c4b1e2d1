"""Turns the options of a `writeStream` into all that the sink works with; no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from wal_sink.errors import OptionError
from wal_sink.options import Options, SinkOptions, names, parse, public, refuse_unknown
from wal_sink.targets.base import Target
from wal_sink.targets.operations import refuse_undeclared
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.wal.location import Location, locate


class Configuration(NamedTuple):
    """A query's options, parsed and checked. Pickles, because it travels to the tasks."""

    sink: SinkOptions
    target_options: Options
    target: Target
    location: Location

    @property
    def public(self) -> dict[str, str]:
        """The options without secrets, as a run's claim records them."""
        return {**public(self.sink), **public(self.target_options)}

    def in_force(self, log: str) -> dict[str, str]:
        """Say what they mean, by heading; without secrets.

        :param log: URL of the query's log.
        """
        sink = self.sink
        then = "waits" if sink.on_full == "block" else "fails"
        return {
            **self.target.description,
            "log": log,
            "checkpoint": self.location.checkpoint,
            "budget": f"{sink.max_bytes:,} bytes of unflushed data (wal.maxBytes), then the next micro-batch"
            f" {then} (wal.onFull={sink.on_full})",
        }


def configure(raw: Mapping[str, str], folder: str | None = None) -> Configuration:
    """Parse options as Spark passes them: strings, under case-insensitive names.

    :param folder: against which a relative `wal.location` counts; None for the current one.
    :raises OptionError: an option is missing, unknown, or does not fit.
    """
    given = {key.lower(): value for key, value in raw.items()}
    kind = target_type(given.get("target", "cassandra"))
    refuse_undeclared(given, kind.name, kind.options_type)
    refuse_unknown(raw, names(SinkOptions, kind.options_type))
    sink = parse(raw, SinkOptions)
    target_options = parse(raw, kind.options_type)
    return Configuration(
        sink,
        target_options,
        kind(target_options),
        locate(sink.checkpoint, sink.wal_location, folder, *storage_options(sink)),
    )


def is_registered(target: str) -> bool:
    """Whether what is installed here registers a target of this name; `module:Class` is not registered."""
    return is_installed(target)


def declared_options(target: str) -> type[Options]:
    """Return the options that a target declares; imports it.

    :raises OptionError: there is no such target.
    """
    return target_type(target).options_type


def storage_options(
    sink: SinkOptions,
) -> tuple[dict[str, object] | None, dict[str, object] | None]:
    """Parse the storage options of log and checkpoint, for `locate`; None where an option is not given.

    :raises OptionError: one is not a JSON object.
    """
    return (
        _json_object("wal.storageOptions", sink.storage_options),
        _json_object("checkpoint.storageOptions", sink.checkpoint_storage_options),
    )


def _json_object(option: str, text: str) -> dict[str, object] | None:
    if not text.strip():
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        # Shows neither the text nor json's error, which holds it: there are keys in it.
        raise OptionError(
            f"Option {option} is not a JSON object.",
            f'Write it as {option}={{"endpoint_url": "…", "key": "…"}}, names and texts in double'
            " quotes.",
        )
    return found
