"""Decides which options in a log a command may use without the operator's confirmation.

A command reads in the log how the newest run of the query connected. Everyone who can write to the log can
change these options. So a command sends a password only to a place that the operator has named. It imports a
class that no installed package registers as a target only if the operator names the class. Without a secret,
the options of the log need no confirmation.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping

from wal_sink.configuration import options_by_target
from wal_sink.errors import OptionError, printable
from wal_sink.options import (
    Declared,
    Options,
    SinkOptions,
    fields,
    lowered,
    names,
    options_of,
    parse,
    public,
    qualified,
)
from wal_sink.targets.registry import is_installed, target_type

OPTIONS_VARIABLE = "WAL_SINK_OPTIONS"
"""The variable with the operator's options for every command."""


def check_logged_options(logged: Mapping[str, str], confirmed: Mapping[str, str]) -> None:
    """Check every target of a query, before a command imports its class and connects to it.

    :param logged: the options in the log, by lower-case name.
    :param confirmed: the operator's options, by lower-case name. They override those in the log.
    :raises OptionError: see `refuse_unregistered` and `refuse_unconfirmed`.
    """
    for target in options_by_target({**logged, **confirmed}):
        of_log, of_operator = (options_of(target.prefix, raw) for raw in (logged, confirmed))
        if "target" in of_log:
            refuse_unregistered(of_log["target"], of_operator.get("target"), target.prefix)
        declared = target_type(target.kind).options_type
        refuse_unconfirmed(declared, of_log, of_operator, os.environ, target.prefix)


def refuse_unregistered(logged: str, confirmed: str | None, prefix: str = "") -> None:
    """Refuse a class in option `target` that no installed package registers, if only the log names it.

    :param logged: option `target` in the log.
    :param confirmed: the operator's option `target`; None if the operator gave none.
    :param prefix: the name of the target in a query with several.
    :raises OptionError: the operator has to confirm the class.
    """
    if confirmed is None and not is_installed(logged):
        option = qualified(prefix, "target")
        pair = shlex.quote(f"{option}={printable(logged)}")
        raise OptionError(
            f"Only the log says that option {option} is {printable(logged)}, which no package installed"
            " here registers. Anyone who can write to the log can change this option.",
            f"If the class is right, add: --option {pair}. Otherwise correct the option, or install the"
            " package that registers the class.",
        )


def refuse_unconfirmed(
    declared: type[Options],
    logged: Mapping[str, str],
    confirmed: Mapping[str, str],
    environment: Mapping[str, str],
    prefix: str = "",
) -> None:
    """Refuse to send a secret to a place that only the log names.

    :param declared: the options of the target.
    :param logged: the options in the log, by lower-case name.
    :param confirmed: the operator's options, by lower-case name. They override those in the log.
    :param environment: the variables of this process.
    :param prefix: the name of the target in a query with several.
    :raises OptionError: the operator has to confirm options; the remedy has the text to paste.
    """
    secrets = list(_secrets(declared, confirmed, environment))
    unconfirmed = [
        f"{qualified(prefix, option.name)}={printable(value)}"
        for option in fields(declared)
        if "connects" in option.extra and option.name.lower() not in confirmed
        if (value := logged.get(option.name.lower(), ""))
        and value.lower() != _default(option).lower()
    ]
    if secrets and unconfirmed:
        pairs = " ".join(f"--option {shlex.quote(pair)}" for pair in unconfirmed)
        raise OptionError(
            f"{' and '.join(secrets)} would be sent to a place that only the log names"
            f" ({', '.join(unconfirmed)}). Anyone who can write to the log can change these options.",
            f"If they are right, add: {pairs}. Otherwise add the right ones; NAME= removes an option. For"
            f" all commands, put such NAME=VALUE pairs into the variable {OPTIONS_VARIABLE}.",
        )


def _secrets(
    declared: type[Options], confirmed: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yield the name of each option or variable with a secret that a connection would send."""
    for option in fields(declared):
        variable = str(option.extra.get("environment", ""))
        if "secret" not in option.extra:
            continue
        if confirmed.get(option.name.lower()):
            yield option.name
        elif environment.get(variable):
            yield variable


def options_for_query(
    options: Mapping[str, str], logged: Mapping[str, str], checkpoint: str
) -> dict[str, str]:
    """Select the operator's options that apply to one of many queries.

    Options of targets that the query does not have are left out.

    :param options: the operator's options for all queries.
    :param logged: the options in the query's log, by lower-case name.
    :raises OptionError: an option and the log name different places to connect to.
    """
    operators = lowered(options)
    of_sink = {name.lower() for name in names(SinkOptions)} - {"target"}
    selected = {name: value for name, value in operators.items() if name in of_sink}
    for prefix, kind, of_log in options_by_target(logged):
        of_operator = options_of(prefix, operators)
        if of_operator.get("target") == kind:
            selected[qualified(prefix, "target")] = kind
        elif not is_installed(kind):
            continue  # only the log names the class, so it is not imported
        declared = target_type(kind).options_type
        known = {name.lower() for name in names(declared)}
        own = {name: value for name, value in of_operator.items() if name in known}
        effective = lowered(public(parse({**of_log, **own}, declared)))  # without passwords
        for option in fields(declared):
            name = option.name.lower()
            place, logged_place = (
                values.get(name, _default(option)) for values in (effective, of_log)
            )
            if name in own and "connects" in option.extra and place != logged_place:
                raise OptionError(
                    f"This flusher was given {qualified(prefix, option.name)}={printable(place)}, and the"
                    f" log says {printable(logged_place) or 'nothing'}.",
                    "Flush this query by a process of its own:\n"
                    f"wal-sink flush {checkpoint} --follow --option NAME=VALUE",
                )
        selected |= {qualified(prefix, name): value for name, value in own.items()}
    return selected


def _default(option: Declared) -> str:
    """Return the default of an option as the log has it; empty for none."""
    return "" if option.required else str(option.default)
