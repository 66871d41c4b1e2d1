"""The ledger row of a query, and the windows of epochs that it names. No I/O."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import msgspec

from wal_sink.errors import CorruptLog


class BegunEpoch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says of one epoch which attempt is flushed, and with which write timestamps (rule 14)."""

    epoch: int
    generation: int
    manifest: str
    """Path of the manifest; empty for an epoch that Spark's state repartition made (rule 12), or that was
    given up before it was begun (rule 22)."""
    digest: str
    """Digest of the manifest (rule 4): what it names is flushed; empty without a manifest."""
    offsets_digest: str
    base_us: int
    """Write timestamp of row 0; row i has `base_us + i` (rule 15)."""
    rows: int
    bytes: int
    published_us: int

    @property
    def last_us(self) -> int:
        """The last write timestamp that belongs to the epoch; an empty epoch uses up its base."""
        return self.base_us + max(self.rows, 1) - 1


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The epochs that are begun and finished together, contiguous and ascending (rule 10)."""

    nonce: str
    begun_us: int
    epochs: tuple[BegunEpoch, ...]
    sending: int = 0
    """Which sending of its rows this is, from 1 on, where no row may be sent twice with one timestamp (rule
    26); 0 where rows may be: every flusher then writes the same ones."""
    target_dated: bool = False
    """Whether the target dates rows itself: those of this window; or earlier ones, if this has none and is
    there to pass over an epoch. Then they may be newer than any timestamp that is noted (rule 14)."""

    @property
    def sent_once(self) -> bool:
        """Whether each of its rows may be sent once with its timestamp (rule 26)."""
        return self.sending > 0

    @property
    def first(self) -> int:
        """The first epoch."""
        return self.epochs[0].epoch

    @property
    def last(self) -> int:
        """The last epoch."""
        return self.epochs[-1].epoch

    @property
    def last_us(self) -> int:
        """The last write timestamp of the window."""
        return self.epochs[-1].last_us

    def to_text(self) -> str:
        """Encode for the ledger; equal windows have equal texts, which the conditional updates compare."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Decode what `to_text` has encoded.

        :raises msgspec.DecodeError: the text is not a window, or one of a newer version.
        """
        return msgspec.json.decode(text, type=cls)


msgspec.json.Decoder(Window)  # learned while one thread imports this, see `codec.learn`


class Owner(NamedTuple):
    """The query, log and checkpoint that a ledger row belongs to (rule 1)."""

    query_id: str
    """The key of the row: of several targets each has its own, see `ledger_key`."""
    log_id: str
    checkpoint: str


def ledger_key(query_id: str, target: str) -> str:
    """Return the key of a query's ledger row for one of its targets: two may share a ledger table.

    :param target: the name of one of several; empty for the only one.
    """
    return f"{query_id}/{target}" if target else query_id


class PassedRow(NamedTuple):
    """A row that the transaction of its window leaves out, as the target refuses it (rule 24)."""

    epoch: int
    us: int
    """Its write timestamp, microseconds since 1970."""

    def owner(self, owner: Owner) -> Owner:
        """Return the key of the note beside a query's ledger row that says what became of this row."""
        key = f"{owner.query_id} {self.epoch} {self.us}"
        return owner._replace(query_id=hashlib.sha256(key.encode()).hexdigest())

    def note(self, owner: Owner, *, sent: bool = False) -> LedgerState:
        """Return that note, in the form of a ledger row.

        :param sent: whether the target has taken the row since.
        """
        return LedgerState(
            log_id="sent" if sent else "refused",
            checkpoint=f"a row of query {owner.query_id}",
            flushed=self.epoch,
            last_us=self.us,
            begun=None,
            last=None,
        )


NOTHING = ""
"""What `begun` and `last` of a `LedgerRow` hold for none: no condition has to compare a null."""


class LedgerRow(NamedTuple):
    """A `LedgerState` as a table keeps it, beside the key."""

    log_id: str
    checkpoint: str
    flushed: int
    last_us: int
    begun: str
    """JSON of up to 32 kB."""
    last: str


class LedgerState(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger row of one query."""

    log_id: str
    checkpoint: str
    flushed: int
    """Every epoch up to this one is in the target; the query's first epoch - 1 for none."""
    last_us: int
    """The highest write timestamp used so far, 0 for none."""
    begun: Window | None
    """The window that is being flushed: the next flusher finishes exactly this one (rule 10)."""
    last: Window | None
    """The window that was flushed last; its `flushed/` records are written from it (rule 17)."""

    @property
    def target_dated(self) -> bool:
        """Whether this row says that the target has dated rows itself: they may be newer than `last_us`."""
        return any(each.target_dated for each in (self.begun, self.last) if each)

    def to_row(self) -> LedgerRow:
        """Return the cells of a table; equal states have equal cells."""
        begun, last = (NOTHING if w is None else w.to_text() for w in (self.begun, self.last))
        return LedgerRow(
            self.log_id, self.checkpoint, self.flushed, self.last_us, begun=begun, last=last
        )

    @classmethod
    def from_row(cls, row: Sequence[Any], where: str) -> Self:
        """Decode what `to_row` has encoded.

        :param row: six cells, in the order of `LedgerRow`.
        :param where: for errors, such as "query Q in the ledger shop.wal_sink_ledger".
        :raises CorruptLog: it is not what this version writes.
        """
        try:
            if None in row:
                raise ValueError(f"it has nulls: {row}")
            log_id, checkpoint, flushed, last_us, *windows = row
            begun, last = map(_window, ("begun", "last"), windows)
        except ValueError as error:
            raise corrupt_row(where, error) from error
        return cls(
            log_id=log_id,
            checkpoint=checkpoint,
            flushed=flushed,
            last_us=last_us,
            begun=begun,
            last=last,
        )

    def to_json(self) -> bytes:
        """Return one value for all; equal states have equal ones."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode what `to_json` has encoded.

        :param where: for errors, see `from_row`.
        :raises CorruptLog: it is not what this version writes.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise corrupt_row(where, error) from error


msgspec.json.Decoder(LedgerState)  # learned while one thread imports this, see `codec.learn`


def _window(column: str, text: str) -> Window | None:
    if text == NOTHING:
        return None
    try:
        return Window.from_text(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"{column} cannot be read ({error}): {text[:200]}") from error


def corrupt_row(where: str, why: object) -> CorruptLog:
    """Return the error for a ledger row that cannot be read."""
    return CorruptLog(
        f"The ledger row of {where} is not what this version of wal_sink writes: {why}",
        "Flush with the newer version that wrote it, or restore the row from a backup. Do not delete it: it"
        " says what is in the target already.",
    )


class Outcome(enum.Enum):
    """The result of a conditional update."""

    APPLIED = "applied"
    CONFLICT = "conflict"
    """The row was not the one that was seen. This call had no effect, and will have none: what was staged for
    it may be deleted."""
    UNKNOWN = "unknown"
    """Anything else: a read tells whether the update was applied."""
