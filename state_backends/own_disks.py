"""Tells folders of this host's own disks from those of mounts, which other hosts may change.

Of its own disks the kernel has every name: each is added through it, by a process or a container of the host,
or over the network by a server on it. Of a network mount it may have an old listing.
"""

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable

_OWN = {
    0xEF53,  # ext2 to ext4
    0x58465342,  # XFS
    0x9123683E,  # Btrfs
    0xF2F52010,  # F2FS
    0x01021994,  # tmpfs
}
"""What Linux says of their kind. Not overlayfs, whose lower folders may be anything; nor FUSE."""

_KNOWN = {"x86_64", "aarch64"}
"""Where `struct statfs` is known to begin with the kind, in eight bytes."""

_ROOM = 512
"""Bytes; the structure has 120."""


def is_on_own_disk(folder: str) -> bool:
    """Whether a folder is on a disk of this host alone; of one that does not exist, where it would be.

    False where that cannot be told.
    """
    statfs = _statfs()
    if statfs is None:
        return False
    found = ctypes.create_string_buffer(_ROOM)
    while statfs(os.fsencode(folder), found) != 0:
        if folder in {"/", ""}:
            return False
        folder = os.path.dirname(folder)  # noqa: PTH120 - Path is slow
    return int.from_bytes(found.raw[:8], sys.byteorder) in _OWN


@functools.cache
def _statfs() -> Callable[..., int] | None:
    if sys.platform != "linux" or platform.machine() not in _KNOWN:
        return None
    try:
        found = ctypes.CDLL(None).statfs
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    found.restype = ctypes.c_int
    called: Callable[..., int] = found
    return called
