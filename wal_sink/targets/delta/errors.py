"""What delta-rs' errors mean."""

from __future__ import annotations

from deltalake.exceptions import CommitFailedError

from wal_sink.targets.base import Kind

_FOR_GOOD = (
    "permission denied",
    "permissiondenied",
    "accessdenied",
    "unauthenticated",
    "forbidden",
)


def classify(error: Exception) -> Kind:
    """Take a store that does not answer, and a commit that met another one, for errors that pass."""
    if isinstance(error, CommitFailedError):
        return "retry"
    if not isinstance(error, OSError) or isinstance(error, PermissionError):
        return "fatal"
    text = str(error).lower()
    return "fatal" if any(words in text for words in _FOR_GOOD) else "retry"


def shortly(error: Exception) -> str:
    """Return an error's text in one line, without the frames that delta-rs draws."""
    return " ".join(str(error).replace("\x1b[31m↳\x1b[0m", "").split())[:400]
