"""What errors tell the operator to run, in one place: the command line has these commands. No I/O."""

from __future__ import annotations

VERIFY = "`wal-sink verify CHECKPOINT` says what else is wrong."
ADOPT = "`wal-sink adopt CHECKPOINT`"


def set_aside(epoch: int | None) -> str:
    """Name the command that takes an epoch out of the line and keeps what there is of it."""
    return f"`wal-sink set-aside CHECKPOINT {_number(epoch)} --to URL`"


def set_aside_begun(epoch: int | None) -> str:
    """Name the same for an epoch of which rows may be in the table."""
    return f"`wal-sink set-aside CHECKPOINT {_number(epoch)} --to URL --begun`"


def accept_gap(epoch: int | None) -> str:
    """Name the command that passes over an epoch of which nothing is left."""
    return f"`wal-sink accept-gap CHECKPOINT {_number(epoch)}`"


def rewind(epoch: int | None) -> str:
    """Name the command that sets ledger and log to an epoch."""
    return f"`wal-sink rewind CHECKPOINT --to {_number(epoch)}`"


def lost_manifest(epoch: int) -> str:
    """Say what to do about a manifest that cannot be used."""
    return (
        f"Restore the file from a copy of the log. If there is none, give epoch {epoch} up:"
        f" {set_aside(epoch)}. {VERIFY}"
    )


def lost_segment(epoch: int | None, *, begun: bool = False) -> str:
    """Say what to do about a segment that cannot be used."""
    command = set_aside_begun(epoch) if begun else set_aside(epoch)
    return (
        f"Restore the file from a copy of the log. If there is none, give epoch {_number(epoch)} up:"
        f" {command} takes it out of the line. {VERIFY}"
    )


def _number(epoch: int | None) -> str:
    return "EPOCH" if epoch is None else str(epoch)
