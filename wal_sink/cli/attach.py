"""`wal-sink detach` and `wal-sink attach`: a target gets nothing any more, or again."""

from __future__ import annotations

from wal_sink.admin.attach import Attached, plan_attach, plan_detach
from wal_sink.cli.change import ChangeArguments, command, make_change
from wal_sink.progress.quantities import epoch_id


@command
def detach(
    given: ChangeArguments,
) -> None:
    """Let one of several targets hold back nothing any more.

    The log keeps no epochs for it, and nothing is flushed to it. The query goes on, and may name it or
    not. What it lacks is listed by `verify`.
    """
    make_change(
        given,
        lambda query, _target, _patience: plan_detach(query),
        lambda done: (
            f"Target {done.target} is detached; the last epoch that it has: {epoch_id(done.state.epoch)}."
        ),
    )


@command
def attach(
    given: ChangeArguments,
) -> None:
    """Let a target that was detached get epochs again.

    From the first epoch on from which the log has everything; what the target lacks before that stays
    missing there, and is said. The query's newest run has to name it.
    """
    make_change(
        given,
        lambda query, database, _patience: plan_attach(query, database),
        _summary,
    )


def _summary(done: Attached) -> str:
    text = f"Target {done.target} gets epochs from {done.state.epoch} on."
    if done.missing:
        text += f" It lacks epochs {done.missing[0]} to {done.missing[1]}."
    return text
