"""Parses `offsets/<epoch>` of Spark's checkpoint: the part of the sources that an epoch covers. No I/O."""

from __future__ import annotations

import re
from typing import NamedTuple

from wal_sink.errors import UnknownOffsetsFormat
from wal_sink.model.codec import digest


class Offsets(NamedTuple):
    """The part of the sources that an epoch covers."""

    text: str
    """Content of the file."""
    digest: str
    """Digest of the source offsets alone, without line two, which has the batch's time and watermark. The
    order of named sources (`v2`) does not count."""


def parse_offsets(text: str, where: str) -> Offsets:
    """Parse the content of an offsets file.

    Spark writes `v1` with one line for each source, in the order of the plan. It writes `v2` with one line
    `<name>:<offset>` for each source if sources may have names: since Spark 4.2, with
    `spark.sql.streaming.queryEvolution.enableSourceEvolution` or
    `spark.sql.streaming.offsetLog.formatVersion=2`.

    :param where: path of the file, for errors.
    :raises UnknownOffsetsFormat: the version is unknown, or a line does not fit the version.
    """
    version, *lines = text.split("\n")
    if version not in ("v1", "v2"):
        raise _unknown(
            f"{where} has the version {version!r}. This version of wal_sink reads 'v1' and 'v2'."
        )
    sources = lines[1:] if version == "v1" else _by_name(lines[1:], where)
    return Offsets(text, digest("\n".join(sources).encode()))


def _by_name(lines: list[str], where: str) -> list[str]:
    """Return the lines of a `v2` file, sorted by name: Spark writes them in the order of a hash map."""
    for line in lines:
        if not re.fullmatch(r'[^\s{}":]+:.+', line):
            raise _unknown(f"{where} has no `<name>:<offset>` in its line {line!r}.")
    return sorted(lines)


def _unknown(what: str) -> UnknownOffsetsFormat:
    return UnknownOffsetsFormat(
        what,
        "Upgrade wal_sink, or run the query with a Spark version that wal_sink is tested with.",
    )
