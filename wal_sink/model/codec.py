"""Encodes records of the log as JSON and decodes them strictly. Equal records have equal bytes."""

from __future__ import annotations

import hashlib
from typing import Self

import msgspec

from wal_sink.errors import CorruptLog

FORMAT = 1
"""Version of every JSON object in the log. Raise the number if an older wal_sink would misread a change."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the records of the log. Decoding ignores unknown fields and refuses a higher `format`."""

    format: int = FORMAT

    def to_json(self) -> bytes:
        """Encode the record as indented JSON, which operators can read."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode a record.

        :param data: content of the object at the path `where`.
        :raises CorruptLog: `data` is not JSON, a field is missing or has a wrong type, or the format is
            newer.
        """
        try:
            # Decode the format first: a newer format may have fields that cannot be decoded here.
            version = msgspec.json.decode(data, type=_Versioned).format
            if version > FORMAT:
                raise CorruptLog(
                    f"{where} has format {version}. This version of wal_sink reads formats up to {FORMAT}.",
                    "Flush with the wal_sink version that wrote it, or upgrade this one.",
                )
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptLog(
                f"{where} cannot be read as {cls.__name__}: {error}.",
                "Restore the file from a copy. Do not delete the file: it may name rows that are not flushed."
                " `wal-sink status CHECKPOINT --deep` lists other damage.",
            ) from error


class _Versioned(msgspec.Struct):
    format: int


def prepare_decoders() -> None:
    """Prepare msgspec's decoders of all records. Each module that declares records ends with this call.

    msgspec prepares a decoder when a type is decoded for the first time. If two threads, such as the
    flushers of two queries, prepare a decoder at the same time, the process ends by SIGSEGV (msgspec 0.22).
    Only one thread imports a module, so the import is a safe time.
    """
    for kind in (_Versioned, *Record.__subclasses__()):
        msgspec.json.Decoder(kind)


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal, as `sha256sum` prints it."""
    return hashlib.sha256(data).hexdigest()
