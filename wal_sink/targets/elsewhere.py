"""What a session says of rows that were published for another table than its options name. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from wal_sink.errors import OptionError


def published_elsewhere(former: str, here: str, options: Iterable[str]) -> OptionError:
    """Return the error at which the flush stops: such rows go neither here nor, unasked, to the former.

    :param former: what the plan of the rows names.
    :param here: what the options name.
    :param options: each as `name=value`, with which a command writes to the former.
    """
    given = " ".join(f"--option {shlex.quote(each)}" for each in options)
    return OptionError(
        f"Rows that wait were published for {former}, and the options name {here}",
        f"If both are right: `wal-sink flush CHECKPOINT {given}` flushes what waits for the former, and the"
        " query goes on. (Of several targets: with --target NAME, and NAME. before each option.) If only the"
        " log says so, it was edited.",
    )
