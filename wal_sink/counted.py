"""Says a number with its noun."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 epoch`, `1,200 epochs`.

    :param one: what follows the number 1: a noun, or with its verb: `epoch was`.
    :param many: what follows every other number; by default `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
