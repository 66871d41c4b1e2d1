"""A keyspace with more replicas than the cluster has nodes is reported at the start."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from wal_sink.demo.cassandra import Node
from wal_sink.errors import SchemaMismatch
from wal_sink.testing.micro_batches import PlayedQuery

pytestmark = pytest.mark.cassandra

ROWS = pa.schema([("id", pa.int64())])
THREE = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"


def test_replication_factor_above_nodes_is_refused_at_the_start(
    cassandra: Node, keyspace: str
) -> None:
    """Without the check the flush would time out. The statement in the error helps."""
    cassandra.execute(f"CREATE TABLE {keyspace}.t (id bigint PRIMARY KEY)")
    cassandra.execute(f"ALTER KEYSPACE {keyspace} WITH replication = {THREE}")
    target = target_of(cassandra, keyspace)
    with pytest.raises(SchemaMismatch, match="LOCAL_QUORUM needs 2 replicas") as refused:
        target.plan(ROWS, "k")
    assert re.search(r"is 3 in \w+, which has 1 node\.", refused.value.what)
    (statement,) = re.findall(r"run:\s(ALTER KEYSPACE .*?;)", refused.value.remedy)
    cassandra.execute(statement)
    query = PlayedQuery(target, ROWS)
    query.run().batch([(1,)])
    query.flush()
    assert [row.id for row in cassandra.execute(f"SELECT id FROM {keyspace}.t")] == [1]
