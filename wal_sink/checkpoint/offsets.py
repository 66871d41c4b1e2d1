"""Reads `offsets/<epoch>` of Spark's checkpoint: the part of the sources that an epoch covers. No I/O."""

from __future__ import annotations

import re
from typing import NamedTuple

from wal_sink.errors import UnknownOffsetsFormat
from wal_sink.model.codec import digest


class Offsets(NamedTuple):
    """The part of the sources that an epoch covers."""

    text: str
    """The whole file."""
    digest: str
    """Digest of the sources' offsets alone, without the batch's time and watermark of line two. In `v2`, of
    the offsets by name, in whichever order the file has them."""


def parse_offsets(text: str, where: str) -> Offsets:
    """Read the text of an offsets file, read from the path `where`.

    Spark writes `v1` with a line for each source in the order of the plan, or `v2` with `<name>:<offset>` for
    each, once sources may have names of their own (`spark.sql.streaming.queryEvolution.enableSourceEvolution`
    or `spark.sql.streaming.offsetLog.formatVersion=2`, since Spark 4.2).

    :raises UnknownOffsetsFormat: its version is another one, or its lines are not of its version.
    """
    version, *lines = text.split("\n")
    if version not in ("v1", "v2"):
        raise _unknown(
            f"{where} has the version {version!r}, this version of wal_sink knows 'v1' and 'v2'"
        )
    sources = lines[1:] if version == "v1" else _by_name(lines[1:], where)
    return Offsets(text, digest("\n".join(sources).encode()))


def _by_name(lines: list[str], where: str) -> list[str]:
    """Return the lines of a `v2` file by their names: Spark writes them in the order of a hash map."""
    for line in lines:
        if not re.fullmatch(r'[^\s{}":]+:.+', line):
            raise _unknown(f"{where} has no `<name>:<offset>` in its line {line!r}")
    return sorted(lines)


def _unknown(what: str) -> UnknownOffsetsFormat:
    return UnknownOffsetsFormat(
        what, "Upgrade wal_sink, or run the query with a Spark version that it is tested with."
    )
