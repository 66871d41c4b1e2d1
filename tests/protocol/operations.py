"""Which operations of a process, as `Faults` names them, change something in the stores."""

from __future__ import annotations

from collections.abc import Sequence

LOOKS = ("read ", "list ", "size ", "input ")
"""In checkpoint, log and ledger."""
TOLD = "event "
"""What Spark tells this process, and only its memory has."""


def changes(operation: str) -> bool:
    """Whether something may lie in the stores that did not before: else dying now is dying earlier."""
    return not operation.startswith((*LOOKS, TOLD))


def different_faults(operations: Sequence[str], when: str) -> list[int]:
    """Return the operations at which a fault may leave what none at an earlier one leaves.

    :param when: `before` or `after`: the process dies; `answer lost`: it lives on, and each is different.
    """
    if when == "answer lost":
        return list(range(len(operations)))
    last_done = operations if when == "after" else ["", *operations]
    return [k for k in range(len(operations)) if k == 0 or changes(last_done[k])]
