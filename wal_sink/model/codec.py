"""Encodes records of the log as JSON: versioned, decoded strictly, the same bytes for the same value."""

from __future__ import annotations

import hashlib
from typing import Self

import msgspec

from wal_sink.errors import CorruptLog

FORMAT = 1
"""Version of every JSON object in the log. Raise it for a change that today's version would misread."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every record of the log. Decoding ignores unknown fields and refuses a higher `format`."""

    format: int = FORMAT

    def to_json(self) -> bytes:
        """Encode as indented JSON, since operators read the log."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode `data`, read from the path `where`.

        :raises CorruptLog: not JSON, a field is missing or of the wrong type, or a newer format.
        """
        try:
            # By the format alone, and then all: of a newer format, say so, whatever else is new in it.
            version = msgspec.json.decode(data, type=_Versioned).format
            if version > FORMAT:
                raise CorruptLog(
                    f"{where} has format {version}, this version of wal_sink knows {FORMAT}",
                    "Flush with the newer version of wal_sink that wrote it, or upgrade this one.",
                )
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptLog(
                f"{where} cannot be read as {cls.__name__}: {error}",
                "Restore the file from a copy. Do not delete it: what it names may be unflushed."
                " `wal-sink status CHECKPOINT --deep` says what else is wrong.",
            ) from error


class _Versioned(msgspec.Struct):
    format: int


def learn() -> None:
    """Let msgspec learn every record that is declared so far; a module of records ends with it.

    It learns a type as it is first decoded. Of two threads that do so at once, such as the flushers of two
    queries that start together, one can meet a type that is half learned, and the process ends by SIGSEGV
    (msgspec 0.22). Modules are imported by one thread.
    """
    for kind in (_Versioned, *Record.__subclasses__()):
        msgspec.json.Decoder(kind)


def digest(data: bytes) -> str:
    """SHA-256 of `data` in hexadecimal, the same that `sha256sum` prints."""
    return hashlib.sha256(data).hexdigest()
