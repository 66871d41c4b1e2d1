"""Finds a target by its name: a shipped target, an entry point of a distribution, or `module:Class`."""

from __future__ import annotations

import functools
from importlib import import_module
from operator import attrgetter

from wal_sink.builtin_targets import BUILTIN
from wal_sink.errors import OptionError
from wal_sink.targets.base import INTERFACE, Target
from wal_sink.unknown_names import did_you_mean

GROUP = "wal_sink.targets"
"""The group of a distribution's entry points for targets, such as `mydb = "my_package:MyTarget"`."""


def is_installed(name: str) -> bool:
    """Return True if a target is registered under a name. False for the form `module:Class`."""
    return name in BUILTIN or name in _registered()


def installed() -> list[str]:
    """Return the names of all registered targets, the shipped targets first."""
    return list(BUILTIN | _registered())


@functools.cache
def target_type(name: str) -> type[Target]:
    """Return the class of a target, by its name or as `module:Class`.

    The result is cached, since the import takes milliseconds, and a worker needs the class in each epoch.

    :raises OptionError: no such target is installed, the target cannot be imported, or the class is not a
        `Target` for this version of the interface.
    """
    if name in BUILTIN:
        return _load(name, BUILTIN[name].place)
    if ":" in name:
        return _load(name, name)
    places = _registered()
    if name not in places:
        raise OptionError(
            f"Option target is {name}, and no such target is installed."
            f" {did_you_mean(name, places)}".rstrip(),
            f"Use one of {', '.join(sorted(places))}, or the module:Class of your own.",
        )
    return _load(name, places[name])


def _registered() -> dict[str, str]:
    """Return `module:Class` of each registered target, by its name."""
    from importlib.metadata import entry_points  # noqa: PLC0415 -- slow, and not needed for shipped targets

    places = {point.name: f"{point.module}:{point.attr}" for point in entry_points(group=GROUP)}
    return places | {name: info.place for name, info in BUILTIN.items()}


def _load(name: str, place: str) -> type[Target]:
    module, _, attribute = place.partition(":")
    try:
        loaded = attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"Option target is {name}, but {place} cannot be imported: {error}",
            "Install the package that has it, or correct module:Class.",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Target)):
        raise OptionError(
            f"Option target is {name}, but {place} is not a Target.",
            "Derive the class from wal_sink.targets.Target.",
        )
    if loaded.interface != INTERFACE:
        raise OptionError(
            f"Target {name} is written for version {loaded.interface} of the interface of targets, and this"
            f" version of wal_sink has {INTERFACE}.",
            "Install a newer version of the target. For a target of your own, follow the"
            f" documentation of targets, and set interface = {INTERFACE} on {loaded.__name__}."
            if loaded.interface < INTERFACE
            else "Install an older version of the target. Or run, on every host of the query and where"
            " commands run:\npip install --upgrade wal_sink",
        )
    return loaded
