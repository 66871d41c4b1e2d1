"""Reads secrets from options or the environment, at each connection, so that they can be changed.

An option has precedence over the environment; to change it takes a restart.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import marked
from wal_sink.targets.cassandra.options import CassandraOptions

ENVIRONMENT = {field: str(name) for field, name in marked(CassandraOptions, "environment").items()}
"""The environment variables for options, by the option's field."""


class Login(NamedTuple):
    """Role and password."""

    username: str
    password: str


def with_environment(options: CassandraOptions) -> CassandraOptions:
    """Fill in what no option gives from this process's environment as it is now."""
    found = {
        field: value
        for field, variable in ENVIRONMENT.items()
        if not getattr(options, field) and (value := os.environ.get(variable))
    }
    if not options.ssl_client_certificate:
        found.pop("ssl_client_key_password", None)  # there is no key that it could open
    return msgspec.structs.replace(options, **found) if found else options


def login(options: CassandraOptions) -> Login | None:
    """Return the role and password to log in with now; None for a cluster without authentication.

    :raises OptionError: only one of them is given.
    """
    now = with_environment(options)
    for given, missing in (("username", "password"), ("password", "username")):
        if getattr(now, given) and not getattr(now, missing):
            raise OptionError(
                f"There is a cassandra.{given} without cassandra.{missing}.",
                f"Give the option cassandra.{missing}, or set {ENVIRONMENT[missing]} where the flusher"
                " runs; or neither of both for a cluster without authentication.",
            )
    return Login(now.username, now.password) if now.username else None
