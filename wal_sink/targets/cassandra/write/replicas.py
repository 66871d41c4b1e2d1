"""The first local replica of a partition, by the driver's map of the ring."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from cassandra.metadata import Murmur3Token

from wal_sink.targets.cassandra.rows import Ints


class Ranges(NamedTuple):
    """The first local replica of each range of tokens, as numbers from 0."""

    ends: Ints
    """The last token of each range, ascending."""
    first: Ints
    nodes: list[Any]
    """The driver's host of each number."""


class Replicas:
    """The replicas of a keyspace's partitions, from the driver's map of the ring.

    The ranges are kept until the driver has another map, or sees a node as up that was down: a walk over a
    ring of 15,360 tokens takes longer than the encoding of the rows that are to be divided.

    :param metadata: the driver's, of the cluster.
    :param datacenter: the local one.
    """

    def __init__(self, metadata: Any, keyspace: str, datacenter: str) -> None:
        self._metadata = metadata
        self._keyspace = keyspace
        self._datacenter = datacenter
        self._made_of: tuple[Any, Any, frozenset[Any]] | None = None
        self._ranges: Ranges | None = None

    @property
    def nodes(self) -> list[Any]:
        """The driver's host of each number that `coordinators` has returned last."""
        return self._ranges.nodes if self._ranges else []

    def coordinators(self, keys: pa.Array) -> Ints | None:
        """Return a number for the first local replica of each routing key, from 0.

        None: any partitions may share a request, because each node of the datacenter has all of them; or
        the driver does not know the replicas.
        """
        ring = self._metadata.token_map
        if ring is None or not issubclass(ring.token_class, Murmur3Token) or not ring.ring:
            return None
        ranges = self._current_ranges(ring)
        if ranges is None:
            return None
        hashed = map(ring.token_class.hash_fn, keys.to_pylist())
        tokens = np.fromiter(hashed, np.int64, len(keys))
        # A token's range ends with it; after the last one the ring begins again.
        return ranges.first[np.searchsorted(ranges.ends, tokens) % len(ranges.ends)]

    def _current_ranges(self, ring: Any) -> Ranges | None:
        """Return the ranges of the driver's map as it is now; None where they do not matter."""
        if self._keyspace not in ring.tokens_to_hosts_by_ks:
            ring.get_replicas(
                self._keyspace, ring.ring[0]
            )  # the driver computes the keyspace's map
        # The driver never changes a map: it makes another one when a node comes or goes, and another one of
        # a keyspace when its replication changes.
        replicas = ring.tokens_to_hosts_by_ks.get(self._keyspace)
        up = frozenset(host for host in self._metadata.all_hosts() if host.is_up)
        source = self._made_of
        if source is None or ring is not source[0] or replicas is not source[1] or up != source[2]:
            self._ranges = self._ranges_of(ring, replicas or {}, up)
            self._made_of = (ring, replicas, up)
        return self._ranges

    def _ranges_of(self, ring: Any, replicas: Any, up: frozenset[Any]) -> Ranges | None:
        near = {host for host in up if host.datacenter == self._datacenter}
        local = [[host for host in replicas.get(token, ()) if host in near] for token in ring.ring]
        nodes = {host for hosts in local for host in hosts}
        if all(len(hosts) == len(nodes) for hosts in local):
            return None
        ordered = sorted(nodes, key=str)
        numbers = {host: number for number, host in enumerate(ordered)}
        return Ranges(
            ends=np.array([token.value for token in ring.ring], np.int64),
            first=np.array([numbers[hosts[0]] if hosts else 0 for hosts in local], np.int64),
            nodes=ordered,
        )
