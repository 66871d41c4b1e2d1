"""Gathers requests into groups, which go to a node by one push. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.light import MOST_BYTES
from wal_sink.targets.cassandra.write.concurrency import PARTS, Concurrency

MOST_REQUESTS = 32
"""Of a group: twice as many cost no less CPU a row."""
_AT_ONCE = 2
"""Groups that may be in flight: while one is awaited, the server has others."""
_AROUND = 128
"""Bytes of a request beside its rows, at most: of its frame, and the longest name of a keyspace."""


class Group:
    """Requests for one node."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.parts = 0
        """Of places, see `Concurrency`."""
        self._bytes = 0

    def add(self, request: Any, parts: int, size: int = 0) -> None:
        """Add a request.

        :param size: bytes on the wire.
        """
        self.requests.append(request)
        self.parts += parts
        self._bytes += size

    def takes(self, parts: int, size: int, most_parts: int) -> bool:
        """Whether a request may be added; to an empty group any may be."""
        return not self.requests or (
            len(self.requests) < MOST_REQUESTS
            and self.parts + parts <= most_parts
            and self._bytes + size <= MOST_BYTES
        )


def grouped(requests: Iterable[Any], concurrency: Concurrency) -> Iterator[Group]:
    """Yield requests in groups, those of a node in their order.

    What is no `EncodedBatch` is a group by itself. A request waits until the next one does not fit into its
    group, so the memory holds one group for each node.
    """
    waiting: dict[Any, Group] = {}
    most_parts = concurrency.limit_parts // _AT_ONCE
    for request in requests:
        if not isinstance(request, EncodedBatch):
            alone = Group()
            alone.add(request, PARTS)
            yield alone
            most_parts = concurrency.limit_parts // _AT_ONCE
            continue
        size = len(request.rows.data)
        parts, size = concurrency.parts(size), size + _AROUND
        group = waiting.get(request.node)
        if group is None or not group.takes(parts, size, most_parts):
            if group is not None:
                yield group
                most_parts = concurrency.limit_parts // _AT_ONCE  # answers have come meanwhile
            group = waiting[request.node] = Group()
        group.add(request, parts, size)
    yield from waiting.values()
