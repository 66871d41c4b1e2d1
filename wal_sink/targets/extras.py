"""Says how to install the client of a database where it is missing: each comes with an extra of wal_sink."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wal_sink.errors import OptionError


@contextlib.contextmanager
def importing(target: str, where: str) -> Iterator[None]:
    """Surround the import of a target's client.

    :param target: its name, which is that of the extra, too.
    :param where: who needs the client, such as "the driver of Spark and every flusher run".
    :raises OptionError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise OptionError(
            f"Option target is {target}, and {error.name} is not installed.",
            f"pip install 'wal_sink[{target}]', where {where}.",
        ) from error
