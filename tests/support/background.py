"""A thread that runs as long as a `with` block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(threading.Thread, ABC):
    """Works until its `with` block ends, which sets `_left`. Then an error of the work is raised."""

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
        """Work, and keep an error for `end`."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self._error = error

    @abstractmethod
    def work(self) -> None:
        """Work, and return soon after `_left` is set."""

    def end(self) -> None:
        """Set `_left`, and wait for the thread.

        :raises BaseException: the error of the work.
        """
        self._left.set()
        self.join()
        if self._error is not None:
            raise self._error
