"""Which options of a log a command may use without the operator's word.

A command reads in the log how the query's newest run connected. All who may write to the log may write that,
too. So a password of the operator's, from the environment or an option, goes only to the place that the
operator has named; and a class that no installed package has registered as a target is imported only at the
operator's word. Where no secret is at hand, the log's word is enough.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping

from wal_sink.configuration import options_by_target
from wal_sink.errors import OptionError
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
from wal_sink.text import printable

OPTIONS_VARIABLE = "WAL_SINK_OPTIONS"
"""The variable that holds options of the operator for every command."""


def refuse_unsaid(logged: Mapping[str, str], confirmed: Mapping[str, str]) -> None:
    """Refuse what only the log says about a query's targets, where the operator has to say it.

    :param logged: the options that the log has, by names in lower case.
    :param confirmed: those of the operator, which win; by names in lower case.
    :raises OptionError: see `refuse_unregistered` and `refuse_unconfirmed`.
    """
    for target in options_by_target({**logged, **confirmed}):
        of_log, of_operator = (options_of(target.prefix, raw) for raw in (logged, confirmed))
        if "target" in of_log:
            refuse_unregistered(of_log["target"], of_operator.get("target"), target.prefix)
        declared = target_type(target.kind).options_type
        refuse_unconfirmed(declared, of_log, of_operator, os.environ, target.prefix)


def refuse_unregistered(logged: str, confirmed: str | None, prefix: str = "") -> None:
    """Refuse to import what only the log names, and no installed package has registered as a target.

    :param logged: option `target`, as the log has it.
    :param confirmed: the operator's, None without one.
    :param prefix: the name of the target, where there are several.
    :raises OptionError: the operator has to say it.
    """
    if confirmed is None and not is_installed(logged):
        option = qualified(prefix, "target")
        pair = shlex.quote(f"{option}={printable(logged)}")
        raise OptionError(
            f"Only the log says that option {option} is {printable(logged)}, which no package installed"
            " here registers. Anyone who can write to the log can change that.",
            f"If it is right, add: --option {pair}. Else correct it, or install the package that has it.",
        )


def refuse_unconfirmed(
    declared: type[Options],
    logged: Mapping[str, str],
    confirmed: Mapping[str, str],
    environment: Mapping[str, str],
    prefix: str = "",
) -> None:
    """Refuse options of the log that say where to connect, if a secret would go there.

    :param declared: the options of the target.
    :param logged: options by lower-case name, as the log has them.
    :param confirmed: those of the operator, which win.
    :param environment: the variables of this process.
    :param prefix: the name of the target, where there are several.
    :raises OptionError: an option of the log is to be confirmed; the remedy has the words to type.
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
        words = " ".join(f"--option {shlex.quote(pair)}" for pair in unconfirmed)
        raise OptionError(
            f"{' and '.join(secrets)} would be sent there: only the log says where to connect"
            f" ({', '.join(unconfirmed)}), and anyone who can write to the log can change that.",
            f"If it is right, add: {words}. If not, add what is right; NAME= leaves an option out. The"
            f" variable {OPTIONS_VARIABLE} has such NAME=VALUE pairs for every command.",
        )


def _secrets(
    declared: type[Options], confirmed: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Name the secrets that a connection would get: options of the operator, and variables."""
    for option in fields(declared):
        variable = str(option.extra.get("environment", ""))
        if "secret" not in option.extra:
            continue
        if confirmed.get(option.name.lower()):
            yield option.name
        elif environment.get(variable):
            yield variable


def fitting(
    options: Mapping[str, str], logged: Mapping[str, str], checkpoint: str
) -> dict[str, str]:
    """Return those options of an operator for many queries that one query can have.

    What another target has is left out, and so is another class of a target.

    :param logged: the options that the query's log has, by names in lower case.
    :raises OptionError: an option says another place to connect to than the log does.
    """
    operators = lowered(options)
    of_sink = {name.lower() for name in names(SinkOptions)} - {"target"}
    fit = {name: value for name, value in operators.items() if name in of_sink}
    for prefix, kind, of_log in options_by_target(logged):
        of_operator = options_of(prefix, operators)
        if of_operator.get("target") == kind:
            fit[qualified(prefix, "target")] = kind
        elif not is_installed(kind):
            continue  # only the log names it: no code of it is imported
        declared = target_type(kind).options_type
        mine = {name.lower() for name in names(declared)}
        own = {name: value for name, value in of_operator.items() if name in mine}
        asked = lowered(public(parse({**of_log, **own}, declared)))  # without passwords
        for option in fields(declared):
            name = option.name.lower()
            place, of_query = (texts.get(name, _default(option)) for texts in (asked, of_log))
            if name in own and "connects" in option.extra and place != of_query:
                raise OptionError(
                    f"This flusher was given {qualified(prefix, option.name)}={printable(place)}, and the"
                    f" log says {printable(of_query) or 'nothing'}.",
                    "Flush the query by a process of its own:\n"
                    f"wal-sink flush {checkpoint} --follow --option NAME=VALUE",
                )
        fit |= {qualified(prefix, name): value for name, value in own.items()}
    return fit


def _default(option: Declared) -> str:
    """Return the default of an option as a run records it; empty for none."""
    return "" if option.required else str(option.default)
