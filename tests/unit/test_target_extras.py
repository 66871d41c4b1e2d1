"""A client that is not installed is named, with the extra that brings it."""

from __future__ import annotations

import importlib

import pytest

from wal_sink.errors import OptionError
from wal_sink.targets.registry import importing


def test_a_missing_client_is_named_with_its_extra() -> None:
    """Any other error of the import goes through."""
    with (
        pytest.raises(OptionError, match=r"target is lake, and no_such_client .*(.|\n)*\[lake\]"),
        importing("lake", "a flusher runs"),
    ):
        importlib.import_module("no_such_client")
    with pytest.raises(ZeroDivisionError), importing("lake", "a flusher runs"):
        _ = 1 / 0
