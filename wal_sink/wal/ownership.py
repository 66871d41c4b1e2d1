"""Checks from both ends that a log and a checkpoint belong together (rule 1).

`log.json` names its checkpoint, so that a copied checkpoint cannot use the log of the first one. The
checkpoint names its log, in `wal_sink/location.json`, so that a query whose `wal.location` was changed
cannot start a second log while epochs still wait in the first: they would never be flushed.
"""

from __future__ import annotations

from wal_sink import remedies
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WrongOwner
from wal_sink.model.records import LogIdentity
from wal_sink.wal.log import Log


def owned(log: Log, checkpoint: Checkpoint) -> LogIdentity | None:
    """Read the log's identity; None before the first publish.

    :raises WrongOwner: log and checkpoint do not belong together.
    """
    _refuse_other_log(log, checkpoint)
    identity = log.identity()
    if identity is not None:
        _refuse_other_checkpoint(identity, log, checkpoint)
    return identity


def own(log: Log, checkpoint: Checkpoint, proposed: LogIdentity) -> LogIdentity:
    """Tie log and checkpoint together, once; return the identity that stands.

    The checkpoint names its log first: after a crash in between, no other log can become the checkpoint's.

    :raises WrongOwner: another log or checkpoint was faster.
    """
    checkpoint.create_log_url(log.url)
    _refuse_other_log(log, checkpoint)
    identity = log.create_identity(proposed)
    _refuse_other_checkpoint(identity, log, checkpoint)
    return identity


def _refuse_other_log(log: Log, checkpoint: Checkpoint) -> None:
    found = checkpoint.log_url()
    if found is not None and found != log.url:
        raise WrongOwner(
            f"The log of {checkpoint.url} is {found}, not {log.url}",
            "Set wal.location back: epochs may wait in that log. A copied checkpoint must not be"
            f" used: start the copy with a new one. If checkpoint or log were moved: {remedies.ADOPT}.",
        )


def _refuse_other_checkpoint(identity: LogIdentity, log: Log, checkpoint: Checkpoint) -> None:
    if identity.checkpoint != checkpoint.url:
        raise WrongOwner(
            f"{log.url} belongs to the checkpoint {identity.checkpoint}, not to {checkpoint.url}",
            "A copied checkpoint must not be used: start the copy with a new one. If the checkpoint"
            f" was moved: {remedies.ADOPT}.",
        )
