"""Reads some items of an iterator before they are wanted; an error comes where its item would have come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Iterator[T], Generic[T]):
    """Yields what an iterator yields, each item once and in order.

    Memory: the items that were read ahead and not yielded since.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._read: deque[T] = deque()
        self._error: Exception | None = None

    def __next__(self) -> T:
        if self._read:
            return self._read.popleft()
        if self._error is not None:
            raise self._error
        return next(self._items)

    def ahead(self) -> Iterator[T]:
        """Yield items that will be yielded again; ends before an error."""
        while self._error is None:
            try:
                item = next(self._items)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - it is raised where the item is wanted
                self._error = error
                return
            self._read.append(item)
            yield item

    @property
    def is_broken(self) -> bool:
        """Whether an error was met ahead."""
        return self._error is not None
