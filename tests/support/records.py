"""Records of epochs of which a test says only what it is about."""

from __future__ import annotations

from typing import Any

from wal_sink.model.ledger import BegunEpoch
from wal_sink.model.records import FlushedEpoch


def begun_epoch(epoch: int, **more: Any) -> BegunEpoch:
    """Return an epoch that is begun, of one row."""
    manifest = {"generation": 1, "manifest": f"manifests/{epoch}", "digest": "d"}
    rest = {
        "offsets_digest": "o",
        "base_us": 1_000 * epoch,
        "rows": 1,
        "bytes": 1,
        "published_us": 1,
    }
    return BegunEpoch(epoch=epoch, **{**manifest, **rest, **more})


def flushed_epoch(epoch: int, **more: Any) -> FlushedEpoch:
    """Return the record of an epoch that is flushed, of one row."""
    manifest = {"generation": 1, "manifest": f"manifests/{epoch}", "digest": "d"}
    rest = {"offsets_digest": "o", "rows": 1, "bytes": 1, "base_us": 1_000 * epoch}
    times = {"published_us": 1, "begun_us": 2, "recorded_us": 3}
    return FlushedEpoch(epoch=epoch, **{**manifest, **rest, **times, **more})
