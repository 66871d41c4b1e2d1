"""Objects as files below one folder, on a local disk or a shared mount.

*Permissions.* A new folder has mode 0700 and a new file 0600, whatever the umask. Below a folder with the
setgid bit, the group gets the same rights in a new folder as in its parent, and may read new files if it may
read the parent. Existing folders and files keep their modes.

*Durability.* Files and folders are synced. Folders are made when they are needed, and removed when empty.
"""

import builtins
import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from state_backends.base import (
    StateBackend,
    StateBackendError,
    check_data,
    check_path,
    check_prefix,
    empty_object,
    existing_object,
    missing_object,
)

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_ATTEMPTS = 1000
"""The maximum number of times that a writer makes the folders of its file, since deleters may remove them."""
_STAYS = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR, errno.EACCES, errno.EPERM}
"""Errors of rmdir for a folder that stays: it is not empty, is a mount or a link, or has another owner."""
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV}
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")


class LocalBackend(StateBackend):
    """Files below the folder `root`, which is made with the first object.

    A writer writes to a hidden file in the object's folder, `.<32 hex digits>.tmp`, and links it to the
    object's name. A killed writer leaves its hidden file: `list` does not return it, and `sweep_unfinished`
    deletes it.

    Writers and deleters take no lock. If a deleter removes an empty folder that a writer has just made, the
    writer makes it again. As soon as the writer's file is in the folder, rmdir fails.

    The class does not use fsspec, whose `LocalFileSystem` writes in place, checks for existence before it
    creates, never syncs, and omits folders that it cannot list.
    """

    process_local = False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        # abspath, not resolve(): no I/O, and Hadoop removes `..` from a path in the same way.
        # POSIX gives two leading slashes a special meaning, so one remains.
        self._root = Path("/" + os.path.abspath(root).lstrip("/"))  # noqa: PTH100
        self.url = f"file://{self._root}"

    def __reduce__(self) -> tuple[type["LocalBackend"], tuple[str]]:
        return type(self), (str(self._root),)

    def create(self, path: str, data: bytes) -> None:
        """See `StateBackend.create`."""
        check_data(check_path(path), data)
        with self.open_output(path) as output:
            output.write(data)

    def replace(self, path: str, data: bytes) -> None:
        """See `StateBackend.replace`. The folder is not synced, so a crash may restore the old content."""
        final = self._root / check_path(path)
        check_data(path, data)
        with self._unfinished(final) as (descriptor, temporary, _):
            with open(descriptor, "wb", closefd=False) as output:
                output.write(data)
            # Without a sync, a power loss could leave a part of the content under the name.
            os.fsync(descriptor)
            temporary.replace(final)

    def read(self, path: str) -> bytes:
        """See `StateBackend.read`."""
        try:
            return (self._root / check_path(path)).read_bytes()
        except (IsADirectoryError, NotADirectoryError) as error:
            raise missing_object(path) from error

    def size(self, path: str) -> int:
        """See `StateBackend.size`."""
        try:
            stats = (self._root / check_path(path)).stat()
        except NotADirectoryError as error:
            raise missing_object(path) from error
        if stat.S_ISDIR(stats.st_mode):
            raise missing_object(path)
        return stats.st_size

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `StateBackend.open_output`."""
        final = self._root / check_path(path)
        with self._unfinished(final) as (descriptor, temporary, made):
            with open(descriptor, "wb", closefd=False) as output:
                yield output
            if not os.fstat(descriptor).st_size:
                raise empty_object(path)
            os.fsync(descriptor)
            _link(descriptor, temporary, final)
        self._sync_up(final.parent, made)

    def open_input(self, path: str) -> BinaryIO:
        """See `StateBackend.open_input`. A deleted object stays readable while it is open."""
        try:
            return (self._root / check_path(path)).open("rb")
        except (IsADirectoryError, NotADirectoryError) as error:
            raise missing_object(path) from error

    def list(self, prefix: str = "") -> builtins.list[str]:
        """See `StateBackend.list`."""
        objects = (
            f"{folder}{name}"
            for folder, names, _ in self._walk(prefix)
            for name in names
            if name[0] != "."
        )
        return sorted(objects)

    def folders(self, prefix: str = "") -> builtins.list[str]:
        """See `StateBackend.folders`."""
        place = self._root / check_prefix(prefix)
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            return sorted(
                entry.name for entry in entries if entry.name[0] != "." and entry.is_dir()
            )
        return []

    def delete(self, paths: Iterable[str]) -> None:
        """See `StateBackend.delete`. Folders that become empty are removed."""
        emptied = set[Path]()
        for path in [check_path(path) for path in paths]:
            file = self._root / path
            try:
                file.unlink(missing_ok=True)
            except (IsADirectoryError, NotADirectoryError):
                continue  # `path` is a folder, or a part of it is a file: there is no such object
            emptied.add(file.parent)
        self._sync_or_remove(emptied)

    def sweep_unfinished(self, min_age_s: float) -> int:
        """See `StateBackend.sweep_unfinished`. The age of a file counts from its last write."""
        oldest_s = time.time() - min_age_s
        swept, empty = builtins.list[Path](), builtins.list[Path]()
        for folder, names, entries in self._walk(""):
            if folder and not entries:
                empty.append(self._root / folder)
            for name in filter(_UNFINISHED.fullmatch, names):
                file = self._root / folder / name
                with suppress(FileNotFoundError):  # the writer has finished
                    if file.stat().st_mtime < oldest_s:
                        file.unlink()
                        swept.append(file.parent)
        self._sync_or_remove([*swept, *empty])
        return len(swept)

    @contextmanager
    def _unfinished(self, final: Path) -> Iterator[tuple[int, Path, set[Path]]]:
        """Open a hidden file beside `final`; delete and close it at the end of the block.

        :return: the file's descriptor, its path, and the folders that were made for it.
        """
        temporary = final.parent / f".{os.urandom(16).hex()}.tmp"
        descriptor, made = _open_in_new_folders(temporary)
        try:
            yield descriptor, temporary, made
        finally:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)

    def _walk(self, prefix: str) -> Iterator[tuple[str, builtins.list[str], int]]:
        """Yield each folder below `prefix`, the names of its files, and the number of its entries."""
        prefix = check_prefix(prefix)
        folders = [f"{prefix}/" if prefix else ""]
        while folders:
            folder = folders.pop()
            files, below = builtins.list[str](), builtins.list[str]()
            try:
                with os.scandir(self._root / folder) as entries:
                    for entry in entries:
                        (below if entry.is_dir() else files).append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                continue  # the folder is missing, or was empty and has been removed
            yield folder, files, len(files) + len(below)
            folders += [f"{folder}{name}/" for name in below if not name.startswith(".")]

    def _sync_up(self, folder: Path, made: set[Path]) -> None:
        """Make the entries of `folder` and of its parents up to the root durable.

        All these folders are synced, not only the folders in `made`, since another writer may have made a
        folder that is not synced yet. Above the root, only the folders in `made` and the parent of the
        highest are synced.
        """
        for parent in (folder, *folder.parents):
            sync(parent)
            if parent not in made and (parent == self._root or parent in self._root.parents):
                return

    def _sync_or_remove(self, folders: Iterable[Path]) -> None:
        """Remove the empty folders among `folders`, and sync the others; the root stays."""
        pending = set(folders)
        while pending:
            depth = max(len(folder.parts) for folder in pending)
            for folder in [path for path in pending if len(path.parts) == depth]:
                pending.discard(folder)
                removed = folder != self._root and _is_removed(folder)
                if (removed or not sync(folder)) and folder != self._root:
                    pending.add(folder.parent)


def sync(path: Path) -> bool:
    """Make a file, or the entries of a folder, durable; return False if `path` does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _open_in_new_folders(file: Path) -> tuple[int, set[Path]]:
    """Create a file and its missing folders; return the file's descriptor and the new folders."""
    made: set[Path] = set()
    try:
        for _ in range(_ATTEMPTS):
            try:
                return _open_new(file), made
            except FileNotFoundError:
                _make(file.parent, made)
    except NotADirectoryError as error:
        raise StateBackendError(
            f"{file.parent} cannot be created, because a part of its path is a file. Move that file away"
        ) from error
    raise StateBackendError(
        f"{file.parent} cannot be created: it is gone each time a file is written there. Check whether a part"
        " of its path is a broken link, or whether something keeps deleting it"
    )


def _open_new(file: Path) -> int:
    """Create a file with its mode; return its descriptor.

    :raises FileNotFoundError: if its folder does not exist.
    """
    shared = _shared_bits(file.parent) & stat.S_IRGRP
    descriptor = os.open(file, _NEW_FILE, stat.S_IRUSR | stat.S_IWUSR)
    try:
        if shared:  # the umask may remove the bit from the mode of open()
            os.fchmod(descriptor, stat.S_IRUSR | stat.S_IWUSR | shared)
    except OSError:
        os.close(descriptor)
        file.unlink()
        raise
    return descriptor


def _make(folder: Path, made: set[Path]) -> None:
    """Make `folder`, or its highest missing parent, and add it to `made`. The caller tries again."""
    try:
        shared = _shared_bits(folder.parent)
        folder.mkdir(stat.S_IRWXU | shared)
        if shared:  # the umask may have removed some bits
            folder.chmod(stat.S_ISGID | stat.S_IRWXU | shared)
    except FileExistsError:
        return  # another writer made it, or it is a file, which the next open() reports
    except FileNotFoundError:
        _make(folder.parent, made)
    else:
        made.add(folder)


def _shared_bits(folder: Path) -> int:
    """Return the rights of the group in a folder with the setgid bit; 0 for a folder without it.

    :raises FileNotFoundError: if the folder does not exist.
    """
    mode = folder.stat().st_mode
    return mode & stat.S_IRWXG if mode & stat.S_ISGID else 0


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in _STAYS:
            return False  # an empty folder does no harm: it is not an object
        raise
    return True


def _link(descriptor: int, temporary: Path, final: Path) -> None:
    """Link a finished file to its object's name, unless the name exists: the atomic step of a create."""
    try:
        os.link(temporary, final)
    except FileExistsError as error:
        # NFS may lose the reply to a link, and repeat the request, which finds the file's own new name.
        # The number of the file's links then is 2: see open(2), O_EXCL.
        if os.fstat(descriptor).st_nlink == 2:
            return
        if final.is_dir():
            raise StateBackendError(
                f"{final} is a folder, so no object can have its name"
            ) from None
        raise existing_object(str(final)) from error
    except FileNotFoundError as error:
        raise StateBackendError(
            f"the unfinished file of {final} is gone: a sweep took it for a dead writer's, or something else"
            " deletes files there. Sweep with a higher age, and write the object again"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StateBackendError(
            f"the mount of {final} has no hard links ({error.strerror}), so it has no atomic create. Use a"
            " mount that has them, such as ext4, XFS or NFS"
        ) from error
