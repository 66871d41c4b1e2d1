"""A query whose log is in S3. Its checkpoint is in a folder."""

from __future__ import annotations

import json

import pytest

import wal_sink
from state_backends import S3Backend
from tests.protocol import raw
from tests.spark.conftest import ROWS_PER_FILE, Shop
from tests.support.s3 import S3

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


def test_log_in_s3_is_trimmed_and_free_of_secrets(shop: Shop, s3: S3) -> None:
    bucket = s3.bucket()
    options = {
        "wal.location": f"{bucket}/logs",
        "wal.storageOptions": json.dumps(s3.options),
        "wal.retention": "0",
    }
    for files in (2, 1):
        shop.add_files(files)
        with wal_sink.register(shop.spark):
            shop.run(**options)
    assert shop.table.ids() == list(range(3 * ROWS_PER_FILE))

    progress = wal_sink.status(shop.checkpoint, storage_options=s3.options)
    assert (progress.checkpointed, progress.flushed, progress.safe_to_delete) == (2, 2, True)
    assert progress.log == f"{bucket}/logs/{progress.query_id}"
    assert wal_sink.await_flushed(shop.checkpoint, 0, storage_options=s3.options).epoch == 2
    log = S3Backend(progress.log, s3.options)
    assert log.list("segments/") == log.list("manifests/") == []
    assert len(raw.state(log)["opened"]) == 2
    for path in log.list():
        assert b"Geheim" not in log.read(path), path
