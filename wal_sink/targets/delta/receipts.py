"""The receipt of a staged file: what its commit has to know of it, as JSON."""

from __future__ import annotations

from typing import Self

import msgspec


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file that no version of the table names yet."""

    path: str
    """Below the table's folder."""
    size: int
    partition: dict[str, str | None]
    staged_ms: int
    """Milliseconds since 1970."""
    statistics: str
    table: str
    """Digest of what the table was when the file was written: see `table.fingerprint`."""

    def to_bytes(self) -> bytes:
        """Encode for the way from a task to the flusher."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` has encoded."""
        return msgspec.json.decode(data, type=cls)
