"""`wal-sink options`: lists the options of the sink and of its targets, from their declarations."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from wal_sink.cli.arguments import AsJson
from wal_sink.cli.terminal import fact_table, output
from wal_sink.options import Entry, SinkOptions, reference
from wal_sink.targets.registry import installed, target_type


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the sink itself, or of one target."""

    name: str
    """Name of the target; empty for the sink."""
    options: tuple[Entry, ...]


class OptionGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `options`."""

    groups: tuple[OptionGroup, ...]


def option_groups(target: str = "") -> tuple[OptionGroup, ...]:
    """Return the options of the sink, and those of its targets.

    :param target: the only target to list; empty for all installed targets.
    :raises OptionError: no target has this name.
    """
    names = [target] if target else installed()
    declared = {"": SinkOptions} | {name: target_type(name).options_type for name in names}
    return tuple(
        OptionGroup(name=name, options=tuple(reference(struct)))
        for name, struct in declared.items()
    )


def options(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Name of a target, or module:Class of your own target."
        ),
    ] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """List the options of a query, with type, default and meaning.

    With TARGET, the list has the options of every query and of this target. Without TARGET, it has the
    options of all installed targets.
    """
    with output(as_json=as_json) as console:
        groups = option_groups(target)
        texts: list[RenderableType] = []
        for group in groups:
            heading = f"Options of target {group.name}" if group.name else "Options of every query"
            entries = ((entry.name, _meaning(entry)) for entry in group.options)
            texts += [Text(heading, "bold underline"), fact_table(*entries), ""]
        console.show(OptionGroups(groups=groups), *texts)


def _meaning(entry: Entry) -> str:
    if entry.default == "required":
        notes = [entry.takes, "required"]
    else:
        notes = [entry.takes, f"default {entry.default}" if entry.default else "no default"]
    if entry.environment:
        notes.append(f"or the variable {entry.environment}")
    if entry.secret:
        notes.append("never shown")
    return f"{entry.text}\n({'; '.join(notes)})"
