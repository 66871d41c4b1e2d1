"""Chooses which PostgreSQL the tests of a run use: the installed package, or a container."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from wal_sink.errors import OptionError
from wal_sink.testing.docker_engine import DockerNotUsable
from wal_sink.testing.postgresql.container import IMAGE, PostgresqlContainer
from wal_sink.testing.postgresql.installed import (
    InstalledPostgresql,
    PostgresqlNotInstalled,
    version,
)
from wal_sink.testing.postgresql.server import Server

VARIABLE = "WAL_SINK_TEST_POSTGRESQL"


class Choice(NamedTuple):
    """Which server, and a line that says which and why."""

    server: Callable[[Mapping[str, object]], Server]
    said: str


def choose(wanted: str, programs: Callable[[], Path], find: Callable[[str], str]) -> Choice:
    """Choose the installed package where there is one, and a container otherwise.

    :param wanted: `auto`, or `installed` or `docker` to force one.
    :param programs: `installed.programs`.
    :param find: `docker_engine.find`.
    :raises PostgresqlNotInstalled: the package is forced, or wanted and no container is to be had either.
    :raises DockerNotUsable: a container is forced and there is none to be had.
    :raises OptionError: anything else is wanted.
    """
    if wanted not in {"auto", "installed", "docker"}:
        raise OptionError(f"{VARIABLE} is {wanted!r}.", "Set it to auto, installed or docker.")
    why = f"as {VARIABLE} says"
    missing = None
    if wanted != "docker":
        try:
            folder = programs()
        except PostgresqlNotInstalled as error:
            if wanted == "installed":
                raise
            missing, why = error, "since no package is installed"
        else:
            return Choice(InstalledPostgresql, f"installed package {version(folder)}, {folder}")
    try:
        engine = find(IMAGE)
    except DockerNotUsable as error:
        if missing is None:
            raise
        raise PostgresqlNotInstalled(
            f"{missing.what}; and {error.what}.", f"{missing.remedy} Or: {error.remedy}"
        ) from error
    return Choice(PostgresqlContainer, f"container {IMAGE} (Docker {engine}), {why}")
