"""The errors of `Driver` about an application that ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal_sink.demo.local_spark import Driver, DriverFailed


def test_crash_shows_the_stacks_of_all_threads(tmp_path: Path) -> None:
    """Only the stacks show why a driver died of a signal."""
    script = "import signal, threading\ndef crash(): signal.raise_signal(signal.SIGSEGV)\n"
    script += "another = threading.Thread(target=crash); another.start(); another.join()"
    driver = Driver(["-c", script], tmp_path / "output")
    with pytest.raises(DriverFailed) as caught:
        driver.finish()
    text = str(caught.value)
    assert "ended with -11" in text
    assert "Segmentation fault" in text
    assert "in crash" in text
    assert "\nThread 0x" in text, "the main one"
