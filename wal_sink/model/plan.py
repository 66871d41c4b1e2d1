"""What was agreed with the target about a query's rows: the plan, which the log keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import pyarrow as pa

from wal_sink.model.codec import Record, digest


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the DataFrame and the column of the target that it goes to."""

    name: str
    source: str
    """Arrow type in the DataFrame, as `str(pyarrow.DataType)`, timestamps in UTC."""
    type: str
    """Type in the target, in the target's words."""
    role: Literal["partition", "clustering", "static", "regular"]


class Plan(Record, frozen=True, kw_only=True):
    """`plans/<key>.json`: what was agreed with the target, as plain data; immutable.

    While it is there a query starts and runs without a connection.
    """

    key: str
    target: str
    table: str
    """Qualified and quoted as the target writes it."""
    columns: tuple[Column, ...]
    """In the order of the DataFrame."""
    details: dict[str, str] = msgspec.field(default_factory=dict)
    """What else the target wants to remember."""


def plan_key(schema: pa.Schema, target: str, shape: Mapping[str, str]) -> str:
    """Digest of all that a plan depends on: the same key means the same plan."""
    fields = [(field.name, str(field.type)) for field in schema]
    return digest(msgspec.json.encode([fields, target, sorted(shape.items())]))[:32]
