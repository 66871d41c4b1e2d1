"""What `verify` has found: values and their JSON."""

from __future__ import annotations

from types import TracebackType

import msgspec

from state_backends import StateBackendError
from wal_sink.errors import LogUnavailable, WalSinkError


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that stops the flush, or will."""

    kind: str
    """Name of the error, see `wal_sink.errors`."""
    exit_code: int
    epoch: int | None
    file: str | None
    """URL of the object that it is about."""
    what: str
    remedy: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `verify`; epoch ids are -1 for none."""

    query_id: str
    target: str = ""
    """Name of the target, if it is one of several."""
    checkpoint: str
    log: str
    checkpointed: int
    published: int
    flushed: int
    """As the log says."""
    ledger: int | None
    """The same as the target says; None when it was not asked, or has no row."""
    epochs: int
    """How many epochs were looked into: those above the mark that are checkpointed, or published."""
    segments: int
    """How many segments were read to the last byte."""
    bytes: int
    set_back: bool
    """Whether the checkpoint lies behind what is flushed (rule 19). A state, no damage, and no finding: it
    ends when the query has caught up. Until then nothing is flushed; a note says so in words."""
    flusher_error: str | None = None
    """Kind of the error at which the flusher that reported last has stopped; it may be repaired by now."""
    findings: tuple[Finding, ...]
    """In the order in which a flusher meets them; a target that does not answer comes last."""
    notes: tuple[str, ...]
    """What an operator may want to know, and what is no damage."""


class Findings:
    """Collects findings: an error that passes `noting` becomes one, and `verify` goes on."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def noting(self, epoch: int | None = None, file: str | None = None) -> _Noting:
        """Turn an error about an epoch, or a file, into a finding."""
        return _Noting(self, epoch, file)

    def add(self, error: WalSinkError, epoch: int | None = None, file: str | None = None) -> None:
        """Add a finding."""
        self.found.append(
            Finding(
                kind=type(error).__name__,
                exit_code=error.exit_code,
                epoch=epoch,
                file=file,
                what=error.what,
                remedy=error.remedy,
            )
        )


class _Noting:
    """A context manager that swallows errors of ours; a class, so that type checkers know that."""

    def __init__(self, findings: Findings, epoch: int | None, file: str | None) -> None:
        self._findings = findings
        self._epoch = epoch
        self._file = file

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(exc, OSError | StateBackendError):
            exc = LogUnavailable(
                f"{self._file or 'The store'} cannot be read: {exc!r}",
                "See to the store: whether this host reaches it, and this user may read it.",
            )
        if not isinstance(exc, WalSinkError):
            return False
        self._findings.add(exc, self._epoch, self._file)
        return True
