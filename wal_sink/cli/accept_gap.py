"""`wal-sink accept-gap`: go on over an epoch whose manifest is lost."""

from __future__ import annotations

from wal_sink.admin import accept_gap as verb
from wal_sink.cli.arguments import (
    Begun,
    CheckpointArgument,
    EpochArgument,
    OptionPairs,
    Wal,
    Why,
    Yes,
)
from wal_sink.cli.output import AsJson
from wal_sink.cli.way_out import Asked, take_way_out


def accept_gap(
    checkpoint: CheckpointArgument,
    epoch: EpochArgument,
    *,
    begun: Begun = False,
    why: Why = "",
    wal: Wal = None,
    option: OptionPairs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give up an epoch that is checkpointed and has no manifest in the log.

    The decision is recorded in the log, and the flusher goes on with the next epoch. Its rows are lost.
    """
    take_way_out(
        Asked(checkpoint, wal, option, why, yes, as_json),
        lambda query, target: verb.plan_accept_gap(query, target, epoch, begun=begun),
        verb.accept_gap,
        lambda done: f"Epoch {epoch} is given up. Recorded in {done.record}.",
    )
