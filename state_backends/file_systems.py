"""The fsspec file systems of this process, made for the state backends alone."""

import json
import os

import fsspec
from fsspec.spec import AbstractFileSystem

from state_backends.storage_options import StorageOptions

_opened: dict[tuple[int, str, str], AbstractFileSystem] = {}


def file_system(protocol: str, options: StorageOptions) -> AbstractFileSystem:
    """Return the file system of a protocol with these options; no I/O.

    Private: the instance that fsspec would cache is shared with everybody else in the process, and
    so is its listing, which does not expire. Ours lists anew each time, and is shared by the
    backends with equal options, because every client costs a fraction of a second to make. A forked
    process makes its own: a client does not survive a fork.
    """
    try:
        key = (os.getpid(), protocol, json.dumps(dict(options), sort_keys=True))
    except TypeError:  # a session, or whatever else is no JSON, cannot be compared
        return _made(protocol, options)
    found = _opened.get(key)
    # Two threads may both make one: the first to be kept is used by both.
    return found if found is not None else _opened.setdefault(key, _made(protocol, options))


def _made(protocol: str, options: StorageOptions) -> AbstractFileSystem:
    arguments = {**options, "skip_instance_cache": True, "use_listings_cache": False}
    return fsspec.filesystem(protocol, **arguments)
