"""Finds a target by its name: an entry point of a distribution, or `module:Class`."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points

from wal_sink.errors import OptionError
from wal_sink.targets.base import Target

GROUP = "wal_sink.targets"
"""The group of entry points: `name = "module:Class"`."""

_OWN = (
    EntryPoint("cassandra", "wal_sink.targets.cassandra:CassandraTarget", GROUP),
    EntryPoint("postgresql", "wal_sink.targets.postgresql:PostgresqlTarget", GROUP),
    EntryPoint("kafka", "wal_sink.targets.kafka:KafkaTarget", GROUP),
    EntryPoint("delta", "wal_sink.targets.delta:DeltaTarget", GROUP),
)
"""Known without metadata too: a checkout on the path has none."""


def is_installed(name: str) -> bool:
    """Whether a target is registered under this name by what is installed here; `module:Class` is not."""
    return name in _registered()


@functools.cache
def target_type(name: str) -> type[Target]:
    """Return the class of the target that option `target` names.

    Cached for the process: reading what is installed takes milliseconds, and a worker asks every epoch.

    :raises OptionError: there is none of that name, it cannot be imported, or it is not a `Target`.
    """
    known = _registered()
    if name in known:
        point = known[name]
    elif ":" in name:
        point = EntryPoint(name, name, GROUP)
    else:
        raise OptionError(
            f"Option target is {name}, and no such target is installed.",
            f"Use one of {', '.join(sorted(known))}, or the module:Class of your own.",
        )
    return _load(point)


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in (*_OWN, *entry_points(group=GROUP))}


def _load(point: EntryPoint) -> type[Target]:
    try:
        loaded = point.load()
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"Option target is {point.name}, but {point.value} cannot be imported: {error}",
            "Install the package that has it, or correct module:Class.",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Target)):
        raise OptionError(
            f"Option target is {point.name}, but {point.value} is not a Target.",
            "Derive the class from wal_sink.targets.base.Target.",
        )
    return loaded
