"""A table in a bucket, by delta-rs' own options."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.delta.conftest import SCHEMA, Query, batch
from tests.support.s3 import S3
from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.options import parse
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.options import DeltaOptions
from wal_sink.testing.contracts.ledger import finish, following, row_of

pytestmark = pytest.mark.s3


class InBucket(Query):
    """A query whose table is in a bucket."""

    def __init__(self, path: str, storage: dict[str, str]) -> None:
        self.storage = storage
        super().__init__(path)

    def made(self) -> DeltaTarget:
        options = {"delta.path": self.path, "delta.storageOptions": json.dumps(self.storage)}
        return DeltaTarget(parse(options, DeltaOptions))


@pytest.fixture
def storage(s3: S3) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "Geheim",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def test_bucket_that_is_not_there_is_no_outage(storage: dict[str, str]) -> None:
    """It does not come by itself."""
    options = {"delta.path": "s3://nowhere/t", "delta.storageOptions": json.dumps(storage)}
    target = DeltaTarget(parse(options, DeltaOptions))
    with pytest.raises(OptionError, match="NoSuchBucket"):
        target.plan(SCHEMA, "key")


@pytest.mark.parametrize("path", ["access_denied/t", "Forbidden", "AccessDenied/t=Forbidden"])
def test_store_that_does_not_answer_is_an_outage(storage: dict[str, str], path: str) -> None:
    """delta-rs quotes the address in its error, whatever the table is called."""
    gone = storage | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "max_retries": "0"}
    options = {"delta.path": f"s3://b/{path}", "delta.storageOptions": json.dumps(gone)}
    with pytest.raises(TargetUnavailable, match=path):
        DeltaTarget(parse(options, DeltaOptions)).plan(SCHEMA, "key")


def test_table_in_a_bucket(s3: S3, storage: dict[str, str]) -> None:
    """Rows arrive once; of two flushers one commits; what is discarded is gone."""
    path = f"{s3.bucket()}/lake/t"
    DeltaTable.create(path, SCHEMA, storage_options=storage)
    query = InBucket(path, storage)
    query.add(batch([("a", 1)]))
    current = row_of(query.session)
    staged, again = query.stage(batch([("a", 2)])), query.stage(batch([("a", 2)]))
    with query.connect() as other:
        assert finish(other, current, following(current), staged) is Outcome.APPLIED
    assert finish(query.session, current, following(current), again) is Outcome.CONFLICT
    query.session.discard(again)
    assert row_of(query.session).epoch == 1
    table: pa.Table = DeltaTable(path, storage_options=storage).to_pyarrow_table()
    assert sorted(table["v"].to_pylist()) == [1, 2]
