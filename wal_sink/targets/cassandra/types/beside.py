"""Refuses options that contradict another one, by a table of the reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.errors import OptionError

_NOT_GIVEN = (None, "", "insert", False)


def refuse_beside(option: str, reasons: Mapping[str, str], given: Mapping[str, object]) -> None:
    """Refuse options that contradict one that is given.

    :param reasons: by the names of options, why they do, and what to do: two sentences.
    :param given: values of other options by their names; those that are empty or the default are not given.
    :raises OptionError: one of them is given.
    """
    for other, why in reasons.items():
        if given.get(other) not in _NOT_GIVEN:
            reason, _, remedy = why.partition(". ")
            raise OptionError(
                f"Options {option} and {other} are given together: {reason}.", f"{remedy}."
            )
