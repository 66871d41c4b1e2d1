"""The first replica of each partition, on rings of the driver's own metadata."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from cassandra.connection import DefaultEndPoint
from cassandra.metadata import KeyspaceMetadata, Metadata
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from wal_sink.targets.cassandra.replicas import Coordinators, Replicas

KEYS = pa.array([f"key {i}".encode() for i in range(2_000)], pa.binary())


PARTITIONER = "org.apache.cassandra.dht.Murmur3Partitioner"


def metadata(
    nodes: dict[str, int], factors: dict[str, str], per_node: int = 8, seed: int = 1
) -> Any:
    """Return the metadata of a cluster.

    :param nodes: the number of nodes in each datacenter.
    :param per_node: the number of tokens of a node.
    """
    known = Metadata()
    tokens = own_tokens(known, nodes, per_node, seed)
    known.keyspaces["ks"] = keyspace(factors)
    known.rebuild_token_map(PARTITIONER, tokens)
    return known


def keyspace(factors: dict[str, str]) -> KeyspaceMetadata:
    return KeyspaceMetadata("ks", True, "NetworkTopologyStrategy", factors)


def own_tokens(known: Metadata, nodes: dict[str, int], per_node: int, seed: int) -> Any:
    """Add nodes; return the tokens of each."""
    seeded = random.Random(seed)
    tokens = {}
    for datacenter, count in nodes.items():
        for number in range(count):
            address = f"10.0.{len(datacenter)}.{number}"
            host = Host(DefaultEndPoint(address), SimpleConvictionPolicy)
            host.set_location_info(datacenter, "rack")
            host.set_up()
            known.add_or_return_host(host)
            tokens[host] = [str(seeded.randrange(-(2**63), 2**63)) for _ in range(per_node)]
    return tokens


def firsts(known: Any, coordinators: Coordinators | None) -> dict[int, set[Any]]:
    """Return the first local replicas that are up, of the keys of each number."""
    assert coordinators is not None
    by_number: dict[int, set[Any]] = {}
    for key, number in zip(KEYS.to_pylist(), coordinators.numbers.tolist(), strict=True):
        replicas = known.get_replicas("ks", key)
        first = next(host for host in replicas if host.is_up and host.datacenter == "near")
        by_number.setdefault(number, set()).add(first)
    return by_number


def test_partitions_of_one_coordinator_have_one_first_replica() -> None:
    """The driver would try this replica first."""
    known = metadata({"near": 5, "far": 4}, {"near": "2", "far": "3"})
    down = next(host for host in known.all_hosts() if host.datacenter == "near")
    down.set_down()
    coordinators = Replicas(known, "ks", "near").coordinators(KEYS)
    assert sorted(map(len, firsts(known, coordinators).values())) == [1, 1, 1, 1]


def test_node_going_down_changes_the_first_replica() -> None:
    """The driver's map does not change while a node is down."""
    known = metadata({"near": 5}, {"near": "2"})
    replicas = Replicas(known, "ks", "near")
    former = replicas.coordinators(KEYS)
    down = min(known.all_hosts(), key=str)
    down.set_down()
    assert sorted(map(len, firsts(known, replicas.coordinators(KEYS)).values())) == [1] * 4
    down.set_up()
    assert firsts(known, replicas.coordinators(KEYS)) == firsts(known, former)


def test_changed_ring_changes_the_first_replica() -> None:
    known = metadata({"near": 5}, {"near": "2"})
    replicas = Replicas(known, "ks", "near")
    for nodes, seed in ({"near": 5}, 2), ({"near": 6}, 3):
        replicas.coordinators(KEYS)
        known.rebuild_token_map(PARTITIONER, own_tokens(known, nodes, 8, seed))
        groups = firsts(known, replicas.coordinators(KEYS))
        assert sorted(map(len, groups.values())) == [1] * nodes["near"]
    known.keyspaces["ks"] = keyspace({"near": "6"})
    known.token_map.rebuild_keyspace("ks")
    assert replicas.coordinators(KEYS) is None


def test_partitions_on_all_nodes_have_no_coordinator() -> None:
    known = metadata({"near": 3, "far": 9}, {"near": "3", "far": "2"})
    assert Replicas(known, "ks", "near").coordinators(KEYS) is None


def test_unknown_ring_has_no_coordinator() -> None:
    assert Replicas(Metadata(), "ks", "near").coordinators(KEYS) is None
    known = metadata({"near": 3}, {"near": "1"})
    assert Replicas(known, "unheard of", "near").coordinators(KEYS) is None
