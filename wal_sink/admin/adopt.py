"""`adopt`: says that checkpoint, log and ledger rows belong together, after one was moved or made again.

First the state gets a new log id and the places as they are, then the checkpoint names the log, then the
ledger row of each target names the new log id. A copy that goes on finds another id in the row, and stops
with `WrongOwner`. So does every flusher if the command dies in between, until it is run again.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import msgspec

from wal_sink.admin.query import Query, actor, connected, move_row
from wal_sink.errors import FlusherAtWork, OptionError, WrongOwner
from wal_sink.flush.pipeline import Pipeline
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import State
from wal_sink.protocol import state as protocol
from wal_sink.wal.location import store_errors
from wal_sink.wal.states import advance


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `adopt`."""

    query_id: str
    former: dict[str, str]
    """The names that state, checkpoint and ledger rows had."""
    names: dict[str, str]
    """Those that they have now."""


class Adoption(NamedTuple):
    """The change that `adopt` makes."""

    query: Query
    state: State
    pipelines: tuple[Pipeline, ...]
    rows: tuple[LedgerRow | None, ...]
    """Of each target."""
    named: str
    """The log that the checkpoint names; empty for none."""

    @property
    def consequences(self) -> str:
        """What the operator agrees to, as sentences."""
        names = ", ".join(pipeline.target_name for pipeline in self.pipelines)
        return (
            f"The log {self.query.store.url} will belong to the checkpoint {self.query.checkpoint.url}, and"
            f" own what the query has in {names}. The state names the checkpoint {self.state.checkpoint} now,"
            f" and the checkpoint names the log {self.named or '(none)'}. Another copy of the query can no"
            " longer flush or publish: if there is one that should go on, answer no."
        )

    @store_errors()
    def carry_out(self) -> Adopted:
        """Write the new names; can be repeated at any point.

        :raises FlusherAtWork: log or ledger row have changed since they were read.
        """
        query, log_id = self.query, uuid.uuid4().hex
        new = protocol.adopt(self.state, log_id, query.checkpoint.url, actor())
        if not advance(query.store, self.state, new):
            raise FlusherAtWork(
                "The log has changed: another process works on the query.",
                "Stop the query and every `wal-sink flush`, and run this again.",
            )
        query.checkpoint.replace_log_url(query.store.url)
        for pipeline, row in zip(self.pipelines, self.rows, strict=True):
            if row is not None:
                move_row(pipeline, row, protocol.adopted_row(new, row))
        return Adopted(
            query_id=query.query_id,
            former=_names(self.state, self.named),
            names=_names(new, query.store.url),
        )


@store_errors()
def plan_adopt(query: Query) -> Adoption:
    """Read what belongs to the query, and check that there is something to adopt.

    :raises WrongOwner: the log is another query's.
    :raises OptionError: nothing is to be adopted.
    """
    state = query.state()
    if state.query_id != query.query_id:
        raise WrongOwner(
            f"{query.store.url} is the log of query {state.query_id}, and the checkpoint is that of query"
            f" {query.query_id}.",
            "Restore the log of this query; or delete what is there, and start the query again.",
        )
    pipelines = tuple(query.pipelines(state))
    rows = []
    for pipeline in pipelines:
        with connected(pipeline) as connection:
            rows.append(connection.row())
    named = query.checkpoint.log_url() or ""
    places = (state.checkpoint, named) == (query.checkpoint.url, query.store.url)
    if places and all(row is None or row.log_id == state.log_id for row in rows):
        raise OptionError(
            "Checkpoint, log and ledger rows belong together already.",
            "Nothing has to be adopted: `wal-sink status CHECKPOINT --deep` says what is wrong.",
        )
    return Adoption(query, state, pipelines, tuple(rows), named)


def _names(state: State, log: str) -> dict[str, str]:
    return {"log_id": state.log_id, "checkpoint": state.checkpoint, "log": log}
