"""Finds the partitions that may share a request without one more hop: those with the same first replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cassandra.metadata import Murmur3Token


class Replicas:
    """The replicas of a keyspace's partitions, from the driver's map of the ring.

    :param metadata: the driver's, of the cluster.
    :param datacenter: the local one.
    """

    def __init__(self, metadata: Any, keyspace: str, datacenter: str) -> None:
        self._metadata = metadata
        self._keyspace = keyspace
        self._datacenter = datacenter

    def coordinators(self, keys: pa.Array) -> npt.NDArray[np.int64] | None:
        """Return a number for the first local replica of each routing key, from 0.

        None: any partitions may share a request, because each node of the datacenter has all of them; or
        the driver does not know the replicas.
        """
        ring = self._metadata.token_map
        if ring is None or not issubclass(ring.token_class, Murmur3Token) or not ring.ring:
            return None
        ring.get_replicas(
            self._keyspace, ring.ring[0]
        )  # makes the driver compute the keyspace's map
        replicas = ring.tokens_to_hosts_by_ks.get(self._keyspace) or {}
        local = [self._local(replicas.get(token, ())) for token in ring.ring]
        nodes = {host for hosts in local for host in hosts}
        if all(len(hosts) == len(nodes) for hosts in local):
            return None
        numbers = {host: number for number, host in enumerate(sorted(nodes, key=str))}
        first = np.array([numbers[hosts[0]] if hosts else 0 for hosts in local], np.int64)
        ends = np.array([token.value for token in ring.ring], np.int64)
        hashed = map(ring.token_class.hash_fn, keys.to_pylist())
        tokens = np.fromiter(hashed, np.int64, len(keys))
        # A token's range ends with it; behind the last one the ring begins again.
        return first[np.searchsorted(ends, tokens) % len(ends)]

    def _local(self, hosts: Any) -> list[Any]:
        return [host for host in hosts if host.is_up and host.datacenter == self._datacenter]
