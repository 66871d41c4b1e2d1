"""The shape of the commands that change something: look, say what follows, ask, do it, say what was done."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from rich.markup import escape

from wal_sink.admin.query import Query, find_query, target_of
from wal_sink.cli.arguments import option_values
from wal_sink.cli.confirm import confirm
from wal_sink.cli.output import document, output
from wal_sink.clock import now_us
from wal_sink.targets.base import Target


class Plan(Protocol):
    """What a verb is going to do; nothing is changed yet."""

    @property
    def consequences(self) -> str:
        """What the operator agrees to, as sentences."""


class Asked(NamedTuple):
    """The parameters that all of these commands have, see `arguments`."""

    checkpoint: str
    wal: str | None
    option: list[str] | None
    why: str
    yes: bool
    as_json: bool


P = TypeVar("P", bound=Plan)
Done = TypeVar("Done", bound=msgspec.Struct)


def take_way_out(
    asked: Asked,
    plan: Callable[[Query, Target], P],
    act: Callable[[P, int, str], Done],
    told: Callable[[Done], str],
) -> None:
    """Take a way out.

    :param plan: looks whether it can be done.
    :param act: does it, given the clock (microseconds since 1970) and why; returns the JSON document.
    :param told: what people read of that.
    """
    with output(as_json=asked.as_json) as console:
        given = option_values(asked.option)
        query = find_query(asked.checkpoint, asked.wal, given)
        planned = plan(query, target_of(query, given))
        confirm(planned.consequences, yes=asked.yes)
        done = act(planned, now_us(), asked.why)
        if asked.as_json:
            document(done)
        else:
            console.print(escape(told(done)), soft_wrap=True)
