"""Makes the folders and files of a local store when needed, syncs them, and removes folders when empty.

What is made belongs to its user alone: folders have the mode 0700, files 0600. Where the folder around
them has the setgid bit, by which a folder is shared with its group, that group may do in a new folder what it
may do around it, and read new files. Other users may do nothing, whatever the umask says. What exists keeps
its mode.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from state_backends.errors import StateBackendError

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
# Far more than the folders of a path plus any series of lost races: a bound for an endless loop.
_ATTEMPTS = 1000
# A folder that cannot be removed stays: it is not empty, is a mount or a link, or is not ours.
_STAYS = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR, errno.EACCES, errno.EPERM}


class Folders:
    """Every folder from `root` down. `root` itself is made when needed, and never removed.

    A writer that makes a folder and a deleter that removes it because it is empty take no lock.
    The writer wins by trying again: from the moment its file is in the folder, rmdir fails.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def open_new(self, file: str) -> tuple[int, set[Path]]:
        """Open a new file for writing; return its descriptor and the folders made for it."""
        made: set[Path] = set()
        folder = file.rpartition("/")[0]
        try:
            for _ in range(_ATTEMPTS):
                try:
                    return _open_new(file, folder), made
                except FileNotFoundError:
                    _make(Path(folder), made)
        except NotADirectoryError as error:
            raise StateBackendError(
                f"{folder} cannot be a folder, because a part of it is a file. Move that away"
            ) from error
        raise StateBackendError(
            f"{folder} cannot be made: it is gone each time a file is to be put there. "
            "See whether a part of it is a link to nowhere, or whether something keeps deleting it"
        )

    def sync_up(self, folder: Path, made: set[Path]) -> None:
        """Make the entry of `folder` durable, and those of its parents up to the root.

        Syncs all of them, and not only those in `made`: a folder that another writer has just made
        and not yet synced looks like any other, and its content would be lost with it. Above the
        root, syncs only the folders in `made`, and the first one that existed.
        """
        for each in (folder, *folder.parents):
            # A folder can be gone only when a deleter has already deleted the new object.
            sync(each)
            if each not in made and (each == self._root or each in self._root.parents):
                return

    def settle(self, folders: Iterable[Path]) -> None:
        """Remove those of `folders` that are empty, and sync the others."""
        open_ones = set(folders)
        while open_ones:
            depth = max(len(folder.parts) for folder in open_ones)
            for folder in [each for each in open_ones if len(each.parts) == depth]:
                open_ones.discard(folder)
                gone = folder != self._root and _is_removed(folder)
                if (gone or not sync(folder)) and folder != self._root:
                    open_ones.add(folder.parent)


def sync(folder: Path) -> bool:
    """Make the entries of `folder` durable. False when there is no such folder (any more)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def open_to_others(folder: Path) -> bool:
    """Whether every user of this host can get into a folder; False when that cannot be told."""
    try:
        return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))
    except OSError:
        return False


def refuse_foreign_links(root: Path, folder: str, safe: set[str] | None = None) -> None:
    """Refuse a folder below `root` to which a link of another user leads.

    An operator may move a folder to another disk and leave a link. But a user with whom the folder is only
    shared could leave one to files of others, and let this process delete them.

    :raises StateBackendError: a link is neither of this user, nor of the owner of `root`, nor of root.
    """
    path = str(root)
    safe = set() if safe is None else safe
    for part in filter(None, folder.split("/")):
        path = f"{path}/{part}"
        if path in safe:
            continue
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in {
                *(0, os.geteuid(), root.stat().st_uid)
            }:
                raise StateBackendError(
                    f"{path} is a link that user {found.st_uid} has made: nothing behind it is listed or "
                    "deleted. Remove it; if it is meant, make it as the user who runs this"
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        safe.add(path)


def _open_new(file: str, folder: str) -> int:
    """Make a file that did not exist in a folder; return its descriptor. By text, since Path is slow."""
    shared = _shared_bits(folder) & stat.S_IRGRP
    descriptor = os.open(file, _NEW_FILE, stat.S_IRUSR | stat.S_IWUSR)
    try:
        if shared:  # not in open(): the umask may take the bit away
            os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR | shared)
    except OSError:
        os.close(descriptor)
        os.unlink(file)  # noqa: PTH108
        raise
    return descriptor


def _shared_bits(folder: str | Path) -> int:
    """Return what the group may do in a folder that is shared with it; 0 when it is not.

    :raises FileNotFoundError: there is no such folder.
    """
    mode = os.stat(folder).st_mode  # noqa: PTH116 - Path is slow
    return mode & stat.S_IRWXG if mode & stat.S_ISGID else 0


def _make(folder: Path, made: set[Path]) -> None:
    """Make `folder`, or the first of its parents that can be made: the caller tries again."""
    try:
        shared = _shared_bits(folder.parent)
        folder.mkdir(stat.S_IRWXU | shared)
        if shared:  # of which the umask may have taken some away
            folder.chmod(stat.S_ISGID | stat.S_IRWXU | shared)
    except FileExistsError:
        # Not mkdir(exist_ok=True): that looks again, and takes a folder that a deleter has just
        # removed for a file. Opening the file tells the two apart.
        return
    except FileNotFoundError:
        _make(folder.parent, made)
    else:
        made.add(folder)


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in _STAYS:
            return False  # an empty folder is no object, so one that stays does no harm
        raise
    return True
