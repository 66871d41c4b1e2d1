"""Reads Spark's `offsets/<epoch>`, the plan of an epoch, as far as the rules need it. No I/O."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from wal_sink.errors import UnknownOffsetsFormat
from wal_sink.model.codec import digest

_PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark never changes it after a query's first batch, except by its offline state repartition."""


class Offsets(NamedTuple):
    """The part of the sources that an epoch covers."""

    text: str
    """The whole file."""
    digest: str
    """Digest of the sources' offsets alone, without the batch's time and watermark of line two. In `v2`, of
    the offsets by name, in whichever order the file has them."""
    partitions: str | None = None
    """State partitions of the batch; None when the file does not say."""
    origin: str = ""
    """Digest of all but `partitions`: equal for a repartition batch and the batch that it copies."""

    def repartitions(self, other: Offsets) -> bool:
        """Whether Spark's offline state repartition has made this batch from another one (rule 12).

        Repartition copies offsets, time and watermark of the last batch that it keeps, and changes the
        number of partitions. No other two batches of a query have the same time.
        """
        return (
            None not in (self.partitions, other.partitions)
            and self.partitions != other.partitions
            and self.origin == other.origin
        )


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
    metadata, conf = _metadata(lines[0] if lines else "")
    partitions = conf.get(_PARTITIONS)
    rest = {name: value for name, value in conf.items() if name != _PARTITIONS}
    sources = "\n".join(lines[1:] if version == "v1" else _by_name(lines[1:], where))
    origin = json.dumps([metadata, rest, sources], sort_keys=True)
    return Offsets(
        text,
        digest(sources.encode()),
        None if partitions is None else str(partitions),
        digest(origin.encode()),
    )


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


def _metadata(line: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return line two without its `conf`, and the `conf`; both empty when it is no JSON object."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}, {}
    if not isinstance(found, dict):
        return {}, {}
    conf = found.pop("conf", None)
    return found, conf if isinstance(conf, dict) else {}
