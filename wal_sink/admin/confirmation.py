"""Refuses to send a secret to a place, or to import a class, that only the log names.

A command uses the options of the newest run, which are in the log. Everyone who can write to the log can
change these options. So a command sends a password only to a place that the operator has named. If no
installed package registers a class as a target, a command imports the class only if the operator names it.
Without a secret, the places in the log need no confirmation.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from wal_sink.configuration import options_by_target
from wal_sink.errors import OptionError, printable
from wal_sink.options import Options, fields, options_of, qualified
from wal_sink.targets.registry import is_installed, target_type

OPTIONS_VARIABLE = "WAL_SINK_OPTIONS"
"""An environment variable with options for every command."""


def refuse_unconfirmed(logged: Mapping[str, str], confirmed: Mapping[str, str]) -> None:
    """Refuse the options of a log that the operator has to confirm.

    A command calls this function before it imports the class of a target or connects to a target.

    :param logged: the options in the log, by lower-case name.
    :param confirmed: the operator's options, by lower-case name.
    :raises OptionError: the operator has to confirm an option of the log.
    """
    for target in options_by_target({**logged, **confirmed}):
        of_log, of_operator = (options_of(target.prefix, raw) for raw in (logged, confirmed))
        kind = of_log.get("target")
        if kind is not None and "target" not in of_operator and not is_installed(kind):
            option = f"{qualified(target.prefix, 'target')}={printable(kind)}"
            raise OptionError(
                f"Only the log names {option}, a class that no package installed here registers. Anyone who"
                " can write to the log can change this option.",
                f"If the class is right, add: {_as_arguments([option])}. Otherwise correct the option, or"
                " install the package that registers the class.",
            )
        declared = target_type(target.kind).options_type
        refuse_unconfirmed_place(declared, of_log, of_operator, os.environ, target.prefix)


def refuse_unconfirmed_place(
    declared: type[Options],
    logged: Mapping[str, str],
    confirmed: Mapping[str, str],
    environment: Mapping[str, str],
    prefix: str = "",
) -> None:
    """Refuse to send a secret to a place that only the log names.

    :param declared: the options of the target.
    :param logged: the options in the log, by lower-case name.
    :param confirmed: the operator's options, by lower-case name.
    :param environment: the environment variables.
    :param prefix: the name of the target in a query with several.
    :raises OptionError: the operator has to confirm options; the remedy has the text to paste.
    """
    secrets, unconfirmed = [], []
    for option in fields(declared):
        name = option.name.lower()
        value = logged.get(name, "")
        is_default = value.lower() in ("", option.default_text.lower())
        if "secret" in option.extra:
            variable = str(option.extra.get("environment", ""))
            if confirmed.get(name):
                secrets.append(option.name)
            elif environment.get(variable):
                secrets.append(variable)
        if "connects" in option.extra and name not in confirmed and not is_default:
            unconfirmed.append(f"{qualified(prefix, option.name)}={printable(value)}")
    if secrets and unconfirmed:
        raise OptionError(
            f"{' and '.join(secrets)} would be sent to a place that only the log names"
            f" ({', '.join(unconfirmed)}). Anyone who can write to the log can change these options.",
            f"If they are right, add: {_as_arguments(unconfirmed)}. Otherwise add the right ones; NAME="
            " removes an option. For all commands, put such NAME=VALUE pairs into the variable"
            f" {OPTIONS_VARIABLE}.",
        )


def _as_arguments(pairs: Sequence[str]) -> str:
    """Return `NAME=VALUE` pairs as arguments of a command, and as an argument of `Sink.follow`."""
    words = " ".join(f"--option {shlex.quote(pair)}" for pair in pairs)
    options = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    return f"{words} (in Python: follow(…, options={options}))"
