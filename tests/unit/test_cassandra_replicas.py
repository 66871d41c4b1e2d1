"""Which node coordinates a partition, on rings that the driver's own metadata describes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from cassandra.connection import DefaultEndPoint
from cassandra.metadata import KeyspaceMetadata, Metadata
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from wal_sink.targets.cassandra.write.replicas import Replicas

KEYS = pa.array([f"key {i}".encode() for i in range(2_000)], pa.binary())


def metadata(nodes: dict[str, int], factors: dict[str, str]) -> Any:
    """A cluster with so many nodes in each datacenter, of 8 tokens each."""
    known = Metadata()
    seeded = random.Random(1)
    tokens = {}
    for datacenter, count in nodes.items():
        for number in range(count):
            address = f"10.0.{len(datacenter)}.{number}"
            host = Host(DefaultEndPoint(address), SimpleConvictionPolicy)
            host.set_location_info(datacenter, "rack")
            host.set_up()
            known.add_or_return_host(host)
            tokens[host] = [str(seeded.randrange(-(2**63), 2**63)) for _ in range(8)]
    known.keyspaces["ks"] = KeyspaceMetadata("ks", True, "NetworkTopologyStrategy", factors)
    known.rebuild_token_map("org.apache.cassandra.dht.Murmur3Partitioner", tokens)
    return known


def test_partitions_of_one_number_have_the_same_first_replica() -> None:
    """The local one that the driver's policy asks first, while it is up."""
    known = metadata({"near": 5, "far": 4}, {"near": "2", "far": "3"})
    down = next(host for host in known.all_hosts() if host.datacenter == "near")
    down.set_down()
    numbers = Replicas(known, "ks", "near").coordinators(KEYS)
    assert numbers is not None
    firsts: dict[int, set[Any]] = {}
    for key, number in zip(KEYS.to_pylist(), numbers.tolist(), strict=True):
        replicas = known.get_replicas("ks", key)
        first = next(host for host in replicas if host.is_up and host.datacenter == "near")
        firsts.setdefault(number, set()).add(first)
    assert sorted(map(len, firsts.values())) == [1, 1, 1, 1]


def test_it_does_not_matter_where_all_nodes_have_everything() -> None:
    """As many replicas as nodes, in this datacenter."""
    known = metadata({"near": 3, "far": 9}, {"near": "3", "far": "2"})
    assert Replicas(known, "ks", "near").coordinators(KEYS) is None


def test_a_driver_that_knows_no_ring() -> None:
    """No token map, or a keyspace that it has not heard of."""
    assert Replicas(Metadata(), "ks", "near").coordinators(KEYS) is None
    known = metadata({"near": 3}, {"near": "1"})
    assert Replicas(known, "unheard of", "near").coordinators(KEYS) is None
