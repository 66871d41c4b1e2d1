"""Refuses quarantine where a refused row could not be sent again."""

from __future__ import annotations

from collections.abc import Iterable

from wal_sink.errors import OptionError
from wal_sink.model.plan import Plan


def refuse_quarantine(plans: Iterable[Plan], on_invalid_row: str) -> None:
    """Refuse quarantine for a table whose rows may be sent once with each timestamp (rule 26).

    :raises OptionError: such rows would be kept.
    """
    if on_invalid_row == "quarantine":
        for plan in plans:
            if plan.sent_once:
                raise OptionError(
                    f"Option onInvalidRow is quarantine, and {plan.table} has lists that are not frozen:"
                    " refused rows are known, and sent again, by their timestamps, which each attempt at such"
                    " lists raises.",
                    "Leave out the option; or make the columns frozen<list<…>>, or leave them out of the"
                    " DataFrame.",
                )
