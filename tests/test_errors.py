"""The errors: names and exit codes, which scripts rely on, and texts."""

from __future__ import annotations

import inspect
import pickle

import pytest

from wal_sink import errors
from wal_sink.errors import WalSinkError

CODES = {
    2: ("OptionError",),
    3: ("SchemaMismatch",),
    4: ("TargetUnavailable", "FlushTimeout", "NoFlusher"),
    5: ("Fenced", "AlreadyPublished", "WrongOwner"),
    6: (
        *("MissingManifest", "MissingSegment", "SegmentNotVisible", "CorruptLog"),
        *("CheckpointNotVisible", "UnknownOffsetsFormat"),
    ),
    7: ("Diverged", "LedgerBehindLog"),
}
"""The exit codes that checks outside the project use."""

EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, WalSinkError) and kind is not WalSinkError
]


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("Epoch 1 is gone", "Epoch 1 is gone. What to do: Restore it. Or skip it."),
        ("It says:\n  - no.", "It says: - no. What to do: Restore it. Or skip it."),
    ],
)
def test_error_in_one_line_gets_its_full_stop(what: str, line: str) -> None:
    """A full stop is added if a text has none."""
    assert WalSinkError(what, "Restore it.\nOr skip it.").one_line == line


def test_errors_have_their_exit_codes() -> None:
    """All errors derive directly from `WalSinkError`, whose exit code is 1."""
    codes = {kind.__name__: kind.exit_code for kind in EVERY}
    promised = {name: code for code, names in CODES.items() for name in names}
    assert {name: codes.get(name) for name in promised} == promised
    assert set(codes.values()) == set(CODES)
    assert {kind.__bases__ for kind in EVERY} == {(WalSinkError,)}
    assert WalSinkError.exit_code == 1


@pytest.mark.parametrize("kind", [WalSinkError, *EVERY])
def test_pickled_error_keeps_text_and_exit_code(kind: type[WalSinkError]) -> None:
    """Spark's workers raise errors, and the driver shows them."""
    error = kind("Epoch 7 is gone", "Restore it.")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.what, copy.remedy) == ("Epoch 7 is gone", "Restore it.")
    assert str(copy) == str(error) == "Epoch 7 is gone\n  What to do: Restore it."
    assert copy.transient == error.transient
    assert str(kind("Epoch 7 is gone")) == "Epoch 7 is gone", "there is no empty heading"


def test_only_outages_are_transient_errors() -> None:
    transient = {kind.__name__ for kind in EVERY if kind.transient}
    assert transient == {"TargetUnavailable", "LogUnavailable"}
