"""Prints the steps and I/O calls of a history."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.simulator.machine import MACHINE, START_US

T = TypeVar("T")


class Trace:
    """Prints each step and each I/O call with the true time, if there is a function to print with."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write
        self.on = write is not None

    def say(self, text: str) -> None:
        if self._write is not None:
            self._write(f"{(MACHINE.true_us - START_US) / 1_000_000:14.3f} s  {text}")

    def call(self, who: str, verb: str, what: str, effect: Callable[[], T]) -> T:
        """Perform a call, and print it with its result."""
        if self._write is None:
            return effect()
        try:
            result = effect()
        except BaseException as error:
            self.say(f"    {who}: {verb} {what} -> {type(error).__name__}")
            raise
        self.say(f"    {who}: {verb} {what}{_short(result)}")
        return result


def _short(result: object) -> str:
    if isinstance(result, list):
        result = [str(name).rpartition("/")[2].removesuffix(".json").lstrip("0") for name in result]
    return "" if isinstance(result, bytes) or result is None else f" -> {result!s:.160}"
