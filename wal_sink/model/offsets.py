"""Reads Spark's `offsets/<epoch>`, the plan of an epoch, as far as the rules need it. No I/O."""

from __future__ import annotations

import json
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
    """Digest of the sources' offsets alone, without the batch's time and watermark of line two."""
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

    :raises UnknownOffsetsFormat: its version is not `v1`.
    """
    version, *lines = text.split("\n")
    if version != "v1":
        raise UnknownOffsetsFormat(
            f"{where} has the version {version!r}, this version of wal_sink knows 'v1'",
            "Upgrade wal_sink, or run the query with a Spark version that it is tested with.",
        )
    metadata, conf = _metadata(lines[0] if lines else "")
    partitions = conf.get(_PARTITIONS)
    rest = {name: value for name, value in conf.items() if name != _PARTITIONS}
    sources = "\n".join(lines[1:])
    origin = json.dumps([metadata, rest, sources], sort_keys=True)
    return Offsets(
        text,
        digest(sources.encode()),
        None if partitions is None else str(partitions),
        digest(origin.encode()),
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
