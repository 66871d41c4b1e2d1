"""Finds the first local replica of each partition, from the driver's map of the ring."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from cassandra.metadata import Murmur3Token

from wal_sink.targets.cassandra.arrow_buffers import Ints


class Coordinators(NamedTuple):
    """The first local replica of each routing key, or of each range of tokens."""

    numbers: Ints
    """The positions of the first replicas in `nodes`."""
    nodes: list[Any]
    """The driver's hosts."""


class Replicas:
    """Finds the first replica of a partition of a keyspace.

    The ranges are computed again only when the driver's map of the ring changes, or when a node goes down or
    comes up. To compute the ranges of 15,360 tokens takes longer than to encode a slice.

    :param metadata: the cluster metadata of the driver.
    :param datacenter: the local datacenter.
    """

    def __init__(self, metadata: Any, keyspace: str, datacenter: str) -> None:
        self._metadata = metadata
        self._keyspace = keyspace
        self._datacenter = datacenter
        self._made_of: tuple[Any, Any, frozenset[Any]] | None = None
        self._ends: Ints = np.zeros(0, np.int64)
        """The last token of each range, ascending."""
        self._of_ranges: Coordinators | None = None

    def coordinators(self, keys: pa.Array) -> Coordinators | None:
        """Return the first local replica of each routing key.

        Return None if each node of the datacenter has all partitions, or if the replicas are unknown. Then
        all partitions may share requests.
        """
        ring = self._metadata.token_map
        if ring is None or not issubclass(ring.token_class, Murmur3Token) or not ring.ring:
            return None
        self._refresh(ring)
        if self._of_ranges is None:
            return None
        hashed = map(ring.token_class.hash_fn, keys.to_pylist())
        tokens = np.fromiter(hashed, np.int64, len(keys))
        # A range includes its end. Tokens after the end of the last range belong to the first range.
        ranges = np.searchsorted(self._ends, tokens) % len(self._ends)
        return self._of_ranges._replace(numbers=self._of_ranges.numbers[ranges])

    def _refresh(self, ring: Any) -> None:
        if self._keyspace not in ring.tokens_to_hosts_by_ks:
            ring.get_replicas(self._keyspace, ring.ring[0])  # the driver computes the map
        # The driver never changes a map in place. It makes a new map of the ring when a node is added or
        # removed, and a new map of a keyspace when the keyspace's replication changes.
        replicas = ring.tokens_to_hosts_by_ks.get(self._keyspace)
        up = frozenset(host for host in self._metadata.all_hosts() if host.is_up)
        source = self._made_of
        if source is None or ring is not source[0] or replicas is not source[1] or up != source[2]:
            self._ends = np.array([token.value for token in ring.ring], np.int64)
            self._of_ranges = self._first_replicas(ring, replicas or {}, up)
            self._made_of = (ring, replicas, up)

    def _first_replicas(self, ring: Any, replicas: Any, up: frozenset[Any]) -> Coordinators | None:
        near = {host for host in up if host.datacenter == self._datacenter}
        local = [[host for host in replicas.get(token, ()) if host in near] for token in ring.ring]
        nodes = {host for hosts in local for host in hosts}
        if all(len(hosts) == len(nodes) for hosts in local):
            return None
        ordered = sorted(nodes, key=str)
        numbers = {host: number for number, host in enumerate(ordered)}
        firsts = [numbers[hosts[0]] if hosts else 0 for hosts in local]
        return Coordinators(np.array(firsts, np.int64), ordered)
