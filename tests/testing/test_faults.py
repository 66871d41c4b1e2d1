"""Faults in calls of a driver."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from wal_sink.testing.faults import CallFaults, Crash


class _Target:
    """A class whose package, this one, calls the driver."""


def _function_of_a_driver() -> Callable[[], int]:
    namespace: dict[str, Any] = {"__name__": "driver"}
    exec("def one(): return 1", namespace)  # the code of another package
    one: Callable[[], int] = namespace["one"]
    return one


def test_fault_in_a_compiled_driver_is_still_raised() -> None:
    """sqlite3 replaces an exception in a callback by its own error."""
    with sqlite3.connect(":memory:") as connection:
        connection.create_function("one", 0, _function_of_a_driver())

        def play(at: int | None) -> list[str]:
            faults = CallFaults([_Target], "resend", at)
            faults.call("resend", lambda: connection.execute("SELECT one()").fetchall())
            return faults.operations

        operations = play(None)
        assert operations[-2:] == ["call one", "call Cursor.fetchall"]
        with pytest.raises(Crash):
            play(operations.index("call one"))
