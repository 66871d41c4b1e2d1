"""A thread that works for as long as a block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(threading.Thread, ABC):
    """Works until its `with` block is left, which sets `_left`; what fails in it is raised there."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._left = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self) -> None:
        """Work, and keep the error for `end`."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised where the block is left
            self._error = error

    @abstractmethod
    def work(self) -> None:
        """Return soon after `_left` is set."""

    def end(self) -> None:
        """Work no more.

        :raises BaseException: the work has failed.
        """
        self._left.set()
        self.join()
        if self._error is not None:
            raise self._error
