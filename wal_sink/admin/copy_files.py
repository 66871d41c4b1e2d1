"""Copies objects of the log to another place, and reads each copy back."""

from __future__ import annotations

import contextlib
import shutil
from uuid import uuid4

from state_backends import StateBackend
from wal_sink.admin.query import Query
from wal_sink.errors import CorruptLog, OptionError
from wal_sink.model.records import FileCopy
from wal_sink.wal.log import Log
from wal_sink.wal.segment import measure

_CHUNK = 1 << 20


def refuse_inside(query: Query, to: StateBackend) -> None:
    """Refuse a place inside of the log or the checkpoint, also under another name.

    :raises OptionError: copies there would be trimmed, or deleted with the checkpoint.
    """
    for inside in (query.log.url, query.checkpoint.url):
        if f"{to.url}/".startswith(f"{inside}/"):
            raise OptionError(
                f"{to.url} is inside of {inside}",
                "Name a place outside of the checkpoint and of the log.",
            )
    marker = f"probe/{uuid4().hex}"
    to.create(marker, b"see whether the log has this file, too\n")
    try:
        if marker in query.log.backend.list("probe/"):
            raise OptionError(f"{to.url} is another name of {query.log.url}", "Name another place.")
    finally:
        to.delete([marker])


def copy_file(log: Log, path: str, to: StateBackend) -> FileCopy:
    """Copy one object under its own path, unless an earlier call has, and compare the copy.

    An empty file, as a crash can leave behind, is only recorded: no store holds one.

    :raises CorruptLog: the copy has other contents.
    """
    with contextlib.closing(log.backend.open_input(path)) as source:
        size, digest = measure(source)
    if not size:
        return FileCopy(path=path, bytes=size, digest=digest)
    with contextlib.suppress(FileExistsError), contextlib.ExitStack() as stack:
        source = stack.enter_context(contextlib.closing(log.backend.open_input(path)))
        output = stack.enter_context(to.open_output(path))
        shutil.copyfileobj(source, output, _CHUNK)
    with contextlib.closing(to.open_input(path)) as copy:
        found = measure(copy)
    if found != (size, digest):
        raise CorruptLog(
            f"{to.url}/{path} has other contents than {log.url}/{path}",
            "Name an empty place. Nothing was changed in the log.",
        )
    return FileCopy(path=path, bytes=size, digest=digest)
