"""Finds a target by its name: one of ours, an entry point of a distribution, or `module:Class`.

Also the error of rows that were published for another table than the options name.
"""

from __future__ import annotations

import functools
import pickle
import shlex
from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from typing import Any

from wal_sink.errors import OptionError
from wal_sink.target_info import OWN
from wal_sink.targets.base import INTERFACE, Target
from wal_sink.text import did_you_mean

GROUP = "wal_sink.targets"
"""The group of entry points: `name = "module:Class"`."""


def is_installed(name: str) -> bool:
    """Return True if what is installed here has a target of this name. A `module:Class` is not a name."""
    return name in OWN or name in _registered()


def installed() -> list[str]:
    """Return the names of all targets that are registered here, those of this package first."""
    return list(OWN | _registered())


@functools.cache
def target_type(name: str) -> type[Target]:
    """Return the class of the target that option `target` names.

    Cached for the process: to import a target, or to read what is installed, takes milliseconds, and a worker
    asks every epoch.

    :raises OptionError: there is none of that name, it cannot be imported, or it is not a `Target` of this
        interface.
    """
    if name in OWN:
        return _load(name, OWN[name].place)
    if ":" in name:
        return _load(name, name)
    known = _registered()
    if name not in known:
        raise OptionError(
            f"Option target is {name}, and no such target is installed."
            f" {did_you_mean(name, known)}".rstrip(),
            f"Use one of {', '.join(sorted(known))}, or the module:Class of your own.",
        )
    return _load(name, known[name])


def _registered() -> dict[str, str]:
    """Read the metadata of all that is installed; return `module:Class` by name."""
    from importlib.metadata import entry_points  # noqa: PLC0415 -- email and csv, for other names than ours

    places = {point.name: f"{point.module}:{point.attr}" for point in entry_points(group=GROUP)}
    return places | {name: info.place for name, info in OWN.items()}


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
            "Install a newer version of the target. For a target of your own, take the steps of the"
            f" documentation of targets, and set interface = {INTERFACE} on {loaded.__name__}."
            if loaded.interface < INTERFACE
            else "Install an older version of the target. Or run, on every host of the query and where"
            " commands run:\npip install --upgrade wal_sink",
        )
    return loaded


def reduced(make: Callable[..., Any], state: tuple[Any, ...], target: Target) -> tuple[Any, ...]:
    """Return what `__reduce__` of an object does that travels to tasks with a target.

    A worker that lacks the target's module then says which one, and not what pickle makes of it.

    :param make: called with the state, it makes the object again.
    """
    module = type(target).__module__
    if module == "__main__":  # which travels by value, if at all
        return make, state
    return _unpacked, (make, module, pickle.dumps(state))


def _unpacked(make: Callable[..., Any], module: str, state: bytes) -> Any:
    try:
        return make(*pickle.loads(state))  # noqa: S301 -- part of a pickle of Spark's
    except ModuleNotFoundError as error:
        raise OptionError(
            f"Spark's Python workers cannot import {error.name}: module {module} of option target is not"
            " there, or lacks what it needs.",
            f"Install the package with {module} on every node, in the Python that PYSPARK_PYTHON names, or"
            " send it along by spark.submit.pyFiles. On one machine, put its folder on PYTHONPATH before"
            " the session is made.",
        ) from error


def published_elsewhere(former: str, here: str, options: Iterable[str]) -> OptionError:
    """Return the error at which the flush stops: such rows go neither here nor, unasked, to the former.

    :param former: what the plan of the rows names.
    :param here: what the options name.
    :param options: each as `name=value`, with which a command writes to the former.
    """
    flags = " ".join(f"--option {shlex.quote(option)}" for option in options)
    return OptionError(
        f"Rows that wait were published for {former}, and the options name {here}.",
        f"If both are right: `wal-sink flush CHECKPOINT {flags}` flushes the pending epochs of the"
        " former, and the query goes on. (Of several targets: with --target NAME, and NAME. before each"
        " option.) If only the log says so, it was edited.",
    )
