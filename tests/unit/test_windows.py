"""How large a window may be: a pure function of bytes."""

from __future__ import annotations

from wal_sink.protocol.windows import WINDOW_BYTES, fits


def test_an_epoch_fits_alone_whatever_its_size() -> None:
    """Others only up to the bound."""
    assert fits(0, 10 * WINDOW_BYTES)
    assert fits(1, WINDOW_BYTES - 1)
    assert not fits(1, WINDOW_BYTES)
