"""Manifests as far as they can be read, for who only looks: a damaged one does not hide the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wal_sink.errors import CorruptLog
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.wal.log import Log


class Readable(NamedTuple):
    """What was read. A manifest that was trimmed meanwhile is in neither."""

    manifests: Mapping[Attempt, Manifest]
    damaged: Mapping[Attempt, CorruptLog]


def read_manifests(log: Log, attempts: Iterable[Attempt]) -> Readable:
    """Read the manifests of attempts, and note what is wrong with those that cannot be."""
    manifests, damaged = {}, {}
    for attempt in attempts:
        try:
            found = log.manifest(attempt)
        except CorruptLog as error:
            damaged[attempt] = error
            continue
        if found is not None:
            manifests[attempt] = found[0]
    return Readable(manifests, damaged)
