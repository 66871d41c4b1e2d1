"""Which rows go into one request: rows of one partition, in their order. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

MAX_ROWS = 100
MAX_BYTES = 32 * 1024
"""Larger single-partition batches gain nothing and hold the coordinator's memory."""


def group(
    keys: Iterable[Hashable],
    sizes: Iterable[int],
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[list[int]]:
    """Yield the positions of rows that share a key, ascending in each list, within the limits.

    :param keys: the partition key of each row.
    :param sizes: bytes of each row; a row above the limit is a group of its own.
    """
    open_groups: dict[Hashable, tuple[list[int], int]] = {}
    for position, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        rows, total = open_groups.get(key, ([], 0))
        if rows and (len(rows) == max_rows or total + size > max_bytes):
            yield rows
            rows, total = [], 0
        rows.append(position)
        open_groups[key] = (rows, total + size)
    for rows, _ in open_groups.values():
        yield rows
