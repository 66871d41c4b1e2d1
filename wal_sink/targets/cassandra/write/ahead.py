"""Encodes rows before `write` brings them, while their window is begun (rule 14); sends none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wal_sink.log_context import line_logger
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice
from wal_sink.targets.cassandra.schema.drift import DriftWatch
from wal_sink.targets.cassandra.times.given import planned_times
from wal_sink.targets.cassandra.times.lives import live_for_a_time
from wal_sink.targets.cassandra.types.absent import only_absent
from wal_sink.targets.cassandra.write.prepared import Planned
from wal_sink.targets.cassandra.write.slice_buffer import SliceBuffer, Stamped

log = line_logger(__name__)


class EncodedAhead:
    """The requests of rows that may be written next. Memory: the rows of one buffer, and their bytes.

    :param plans: those by which rows were written before, by key.
    :param drift: watches their tables.
    :param encode: makes requests of rows.
    """

    def __init__(
        self,
        plans: Mapping[str, Planned],
        drift: DriftWatch,
        encode: Callable[[Planned, Stamped], Iterator[Any]],
    ) -> None:
        self._plans = plans
        self._drift = drift
        self._encode = encode
        self._of: Planned | None = None
        self._slices: list[Slice] = []
        self._requests: list[Any] = []

    def encode(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        """Encode the first rows, as many as the buffer of their plan would gather; raises nothing.

        What is wrong with them, or with their tables, `write` finds again, and raises.
        """
        self.forget()
        try:
            self._encode_first(rows)
            self._drift.look_ahead()
        except Exception:
            self.forget()
            log.debug("rows could not be encoded before they are written", exc_info=True)

    def requests(self, planned: Planned) -> list[Any] | None:
        """Return the requests in place of what a plan's buffer holds, and empty it; None: encode that.

        They are taken once, and only where it holds the same slices, to the object: timestamps do not tell
        rows apart, since two attempts at an epoch may get the same ones.
        """
        of, slices, requests = self._of, self._slices, self._requests
        self.forget()
        if of is planned and self._is_plain(planned) and planned.buffer.take_if(slices):
            return requests
        return None

    def forget(self) -> None:
        """Throw away what is encoded."""
        self._of, self._slices, self._requests = None, [], []

    def _encode_first(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        buffer = SliceBuffer()
        for plan, each in rows:
            planned = self._plans.get(plan.key)
            if self._of is None and planned is not None and self._is_plain(planned):
                self._of = planned
            if planned is None or planned is not self._of:
                break
            if each.batch.num_rows:
                buffer.add(each)
                self._slices.append(each)
            if buffer.is_due():
                break
        if self._of is not None:
            for stamped in buffer.take():
                self._requests += self._encode(self._of, stamped)

    def _is_plain(self, planned: Planned) -> bool:
        """Whether rows are encoded alike at any time: by no clock, and by nothing that is in the table."""
        return not planned.plan.one_session and not any(
            only_absent(table.plan)
            or self._drift.lacking(table.plan)
            or live_for_a_time(planned_times(table.plan), self._drift.default_ttl_s(table.plan))
            for table in planned.tables
        )
