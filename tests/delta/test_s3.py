"""A table in a bucket, by delta-rs' own options."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.delta.conftest import SCHEMA, Query, batch, delta_target
from tests.support.s3 import S3
from wal_sink.errors import OptionError, TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.testing.contracts.ledger import finish, following, row_of

pytestmark = pytest.mark.s3


@pytest.fixture
def storage(s3: S3) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "Geheim",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def options(storage: dict[str, str]) -> dict[str, str]:
    return {"delta.storageOptions": json.dumps(storage)}


def test_missing_bucket_raises_option_error(storage: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="NoSuchBucket"):
        delta_target("s3://nowhere/t", **options(storage)).plan(SCHEMA, "key")


@pytest.mark.parametrize("path", ["access_denied/t", "Forbidden", "AccessDenied/t=Forbidden"])
def test_store_that_does_not_answer_raises_unavailable(storage: dict[str, str], path: str) -> None:
    """delta-rs quotes the address in its error, so the table's name may look like a refusal."""
    unreachable = storage | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "max_retries": "0"}
    with pytest.raises(TargetUnavailable, match=path):
        delta_target(f"s3://b/{path}", **options(unreachable)).plan(SCHEMA, "key")


def test_rows_in_a_bucket_are_committed_once(s3: S3, storage: dict[str, str]) -> None:
    """Two flushers stage the same window: the first commits, and the second discards its files."""
    path = f"{s3.bucket()}/lake/t"
    DeltaTable.create(path, SCHEMA, storage_options=storage)
    query = Query(path, **options(storage))
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
