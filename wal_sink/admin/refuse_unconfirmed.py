"""Refuses to let the log alone decide who gets a secret, or which code runs.

A command reads in the log how the query's newest run connected. All who may write to the log may write
that, too. So a password of the operator's, from the environment or an option, goes only where the operator
has said; and a class that no installed package has registered as a target is imported only at the operator's
word. Where no secret is at hand, the log's word is enough: there is nothing to be stolen.

No I/O.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

import msgspec

from wal_sink.errors import OptionError
from wal_sink.options import Options, fields, marked
from wal_sink.progress.printable import printable

OPTIONS_VARIABLE = "WAL_SINK_OPTIONS"
"""The variable that holds options of the operator for every command."""


def refuse_unconfirmed(
    kind: type[Options],
    logged: Mapping[str, str],
    given: Mapping[str, str],
    environment: Mapping[str, str],
    first: str = "",
) -> None:
    """Refuse options of the log that say where to connect, if a secret would go there.

    :param kind: what the target declares.
    :param logged: options by lower-case name, as the log has them.
    :param given: those of the operator, which win.
    :param environment: the variables of this process.
    :param first: with what the user begins the target's options, where there are several targets.
    :raises OptionError: an option of the log is to be confirmed; the remedy has the words to type.
    """
    secrets = list(_secrets(kind, given, environment))
    unconfirmed = [
        f"{first}{name}={printable(logged[name.lower()])}"
        for name in _decided_by(kind, logged)
        if name.lower() not in given
    ]
    if secrets and unconfirmed:
        words = " ".join(f"--option {shlex.quote(pair)}" for pair in unconfirmed)
        raise OptionError(
            f"Only the log says where to connect ({', '.join(unconfirmed)}), and"
            f" {' and '.join(secrets)} would be sent there. Who can write to the log could have written that",
            f"If it is right, add: {words}. If not, add what is right; NAME= leaves an option out. The"
            f" variable {OPTIONS_VARIABLE} has such NAME=VALUE pairs for every command.",
        )


def refuse_unregistered(
    logged: str, given: str | None, first: str = "", *, is_registered: bool
) -> None:
    """Refuse to import what only the log names.

    :param logged: option `target`, as the log has it.
    :param given: the operator's, None without one.
    :param first: with what the user begins the target's options, where there are several targets.
    :param is_registered: whether an installed package has registered a target of the logged name.
    :raises OptionError: the operator has to say it.
    """
    if given is None and not is_registered:
        pair = shlex.quote(f"{first}target={printable(logged)}")
        raise OptionError(
            f"Only the log says that option {first}target is {printable(logged)}, which no package installed"
            " here registers. Who can write to the log could have written that",
            f"If it is right, add: --option {pair}. Else correct it, or install the package that has it.",
        )


def _decided_by(kind: type[Options], logged: Mapping[str, str]) -> Iterator[str]:
    """Yield the options that decide about connections and that the log has other than by default."""
    connects = marked(kind, "connects")
    for field in fields(kind):
        found = logged.get(field.encode_name.lower(), "")
        default = "" if field.default is msgspec.NODEFAULT else str(field.default)
        if field.name in connects and found.lower() not in {"", default.lower()}:
            yield field.encode_name


def _secrets(
    kind: type[Options], given: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Name the secrets that a connection would get: options of the operator, and variables."""
    secret, variables = marked(kind, "secret"), marked(kind, "environment")
    for field in fields(kind):
        if field.name not in secret:
            continue
        if given.get(field.encode_name.lower()):
            yield field.encode_name
        elif environment.get(str(variables.get(field.name, ""))):
            yield str(variables[field.name])
