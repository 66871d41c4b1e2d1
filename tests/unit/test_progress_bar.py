"""The progress bar: late, on standard error, and never beside JSON."""

from __future__ import annotations

import pytest

from wal_sink.cli.terminal import LateBar


@pytest.mark.parametrize(
    ("quiet_s", "as_json", "shown"), [(0.0, False, True), (60.0, False, False), (0.0, True, False)]
)
def test_a_bar(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet_s: float,
    as_json: bool,
    shown: bool,
) -> None:
    """It appears on a terminal, once what it is about has taken a while."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("wal_sink.cli.terminal._QUIET_S", quiet_s)
    with LateBar("reading segments", as_json=as_json) as bar:
        bar.update(1, 2)
    printed = capsys.readouterr()
    assert ("reading segments" in printed.err) is shown
    assert printed.out == ""
    if not shown:
        assert printed.err == ""
