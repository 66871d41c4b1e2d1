"""Makes the fsspec file systems that the state backends of this process share."""

import json
import os

import fsspec
from fsspec.spec import AbstractFileSystem

from state_backends.storage_options import StorageOptions

_opened: dict[tuple[int, str, str], AbstractFileSystem] = {}


def file_system(protocol: str, options: StorageOptions) -> AbstractFileSystem:
    """Return the file system of a protocol with these options; no I/O.

    It is shared by the backends with equal options, because a client takes a fraction of a second to
    make. It is not the instance that fsspec caches: all code of the process shares that one, and its
    listing, which does not expire; this one lists anew each time. A forked process makes its own,
    because a client does not survive a fork.
    """
    try:
        key = (os.getpid(), protocol, json.dumps(dict(options), sort_keys=True))
    except TypeError:  # an option that is no JSON, such as a session, cannot be compared
        return _made(protocol, options)
    found = _opened.get(key)
    # Two threads may both make one: both use the one that was stored first.
    return found if found is not None else _opened.setdefault(key, _made(protocol, options))


def _made(protocol: str, options: StorageOptions) -> AbstractFileSystem:
    arguments = {**options, "skip_instance_cache": True, "use_listings_cache": False}
    return fsspec.filesystem(protocol, **arguments)
