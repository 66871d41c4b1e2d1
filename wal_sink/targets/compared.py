"""What a session may offer beside `base.Session`: it compares a plan with the table, and writes nothing.

So `wal-sink verify` finds a table that was dropped or altered under epochs that wait, also where no flusher
runs.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from wal_sink.model.plan import Plan


@runtime_checkable
class Compares(Protocol):
    """A session that can compare a plan with the table as `write` does with the first rows."""

    def compare(self, plan: Plan) -> None:
        """Compare a plan with the table as it is now; write nothing. Comes without `begin` and `start`.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options.
        :raises Exception: any other, for `Target.classify`.
        """
