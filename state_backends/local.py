"""Objects as files below one folder, on a local disk or a shared mount.

*Permissions.* New folders have mode 0700 and new files 0600, whatever the umask. Where the parent folder
has the setgid bit, by which a folder is shared with its group, the group gets in a new folder the rights
that it has in the parent, and may read new files. Existing folders and files keep their mode.

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
)

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
                f"{folder} cannot be created, because a part of its path is a file. Move that file"
                " away"
            ) from error
        raise StateBackendError(
            f"{folder} cannot be created: it is gone each time a file is written there. Check"
            " whether a part of its path is a broken link, or whether something keeps deleting it"
        )

    def sync_up(self, folder: Path, made: set[Path]) -> None:
        """Make the entry of `folder` durable, and those of its parents up to the root.

        Syncs all of them, and not only those in `made`: a folder that another writer has just made
        and not yet synced looks like any other, and its content would be lost with it. Above the
        root, syncs only the folders in `made`, and the first one that existed.
        """
        for parent in (folder, *folder.parents):
            # A folder can be gone only when a deleter has already deleted the new object.
            sync(parent)
            if parent not in made and (parent == self._root or parent in self._root.parents):
                return

    def sync_or_remove(self, folders: Iterable[Path]) -> None:
        """Remove those of `folders` that are empty, and sync the others."""
        open_ones = set(folders)
        while open_ones:
            depth = max(len(folder.parts) for folder in open_ones)
            for folder in [path for path in open_ones if len(path.parts) == depth]:
                open_ones.discard(folder)
                gone = folder != self._root and _is_removed(folder)
                if (gone or not sync(folder)) and folder != self._root:
                    open_ones.add(folder.parent)


def sync(path: Path) -> bool:
    """Make a file, or the entries of a folder, durable. False when it is not there (any more)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


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
            return False  # an empty folder is not an object, so one that stays does no harm
        raise
    return True


def content(descriptor: int) -> bytes:
    """Read an open file to its end: with one read, if that brings as much as the file has."""
    size = os.fstat(descriptor).st_size
    parts = [os.read(descriptor, size + 1)]
    while parts[-1] and len(parts[0]) != size:
        parts.append(os.read(descriptor, size + 1))
    return b"".join(parts)


def write(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a new file."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV}


class LocalBackend(StateBackend):
    """Files below the folder `root`, which is made when the first object is; the module says their modes.

    Without fsspec, for the reasons given beside each method; and to import it takes longer than to write a
    small segment, in each of Spark's Python workers. A writer works in a hidden file
    (`.<32 hex digits>.tmp`) in the object's folder. A writer that is killed leaves that file behind:
    `list` never shows it, and only `sweep_unfinished` removes it.
    """

    process_local = False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        # abspath and not resolve(): making an instance does no I/O, and Hadoop takes `..` out of
        # a path in the same way. To POSIX two leading slashes are something special; not here.
        self._root = Path("/" + os.path.abspath(root).lstrip("/"))  # noqa: PTH100
        self._place = "/" if self._root == Path("/") else f"{self._root}/"
        self.url = f"file://{self._root}"
        self._folders = Folders(self._root)

    def __reduce__(self) -> tuple[type["LocalBackend"], tuple[str]]:
        return type(self), (str(self._root),)

    def create(self, path: str, data: bytes) -> None:
        """See `StateBackend.create`."""
        check_data(check_path(path), data)
        with self.open_output(path) as output:
            output.write(data)

    def replace(self, path: str, data: bytes) -> None:
        """See `StateBackend.replace`. The folder is not synced: a crash may undo it, whole."""
        final = f"{self._place}{check_path(path)}"
        check_data(path, data)
        with self._unfinished(final) as (descriptor, temporary, _):
            write(descriptor, data)
            os.fsync(descriptor)  # or a power loss could leave the new name with half the bytes
            os.replace(temporary, final)  # noqa: PTH105 - Path is slow

    def read(self, path: str) -> bytes:
        """See `StateBackend.read`."""
        # To open a file by fsspec takes several times as long as to read a small object, and a log has ten
        # small objects for each epoch. A file object of Python doubles the time.
        try:
            descriptor = os.open(f"{self._place}{check_path(path)}", os.O_RDONLY | os.O_CLOEXEC)
        except NotADirectoryError as error:
            raise _missing(path) from error
        try:
            return content(descriptor)
        except IsADirectoryError as error:
            raise _missing(path) from error
        finally:
            os.close(descriptor)

    def size(self, path: str) -> int:
        """See `StateBackend.size`."""
        try:
            stats = os.stat(f"{self._place}{check_path(path)}")  # noqa: PTH116 - Path is slow
        except NotADirectoryError as error:
            raise _missing(path) from error
        if stat.S_ISDIR(stats.st_mode):
            raise _missing(path)
        return stats.st_size

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `StateBackend.open_output`."""
        # fsspec writes in place, and in its transactions in the system's folder for temporary
        # files, from where it copies; its create is exists-then-write; and it never syncs.
        final = f"{self._place}{check_path(path)}"
        with self._unfinished(final) as (descriptor, temporary, made):
            # The descriptor stays open there, so a writer that closes its file does no harm.
            with open(descriptor, "wb", closefd=False) as output:
                yield output
            if not os.fstat(descriptor).st_size:
                raise empty_object(path)
            os.fsync(descriptor)
            _link(descriptor, temporary, final)
        self._folders.sync_up((self._root / path).parent, made)

    def open_input(self, path: str) -> BinaryIO:
        """See `StateBackend.open_input`. A deleted object stays readable while it is open."""
        try:
            return (self._root / check_path(path)).open("rb")
        except (IsADirectoryError, NotADirectoryError) as error:
            raise _missing(path) from error

    def copy(self, path: str, to: str) -> None:
        """See `StateBackend.copy`. The file gets a second name, not a second byte: no object changes."""
        source, final = self._root / check_path(path), self._root / check_path(to)
        with self._unfinished(str(final)) as (_, _, made):  # which makes the folders
            try:
                os.link(source, final)
            except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
                if source.is_file():
                    raise
                raise _missing(path) from error
        self._folders.sync_up(final.parent, made)

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
        """See `StateBackend.delete`. Folders that become empty go as well."""
        # Not fsspec's rm(): it raises for what is missing, and syncs nothing.
        # Names of many small files: Path would take longer than the system does.
        touched = set[str]()
        for path in [check_path(path) for path in paths]:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._place}{path}")  # noqa: PTH108 - see above
            except (IsADirectoryError, NotADirectoryError):
                continue  # a folder, or below a file: there is no such object
            touched.add(path.rpartition("/")[0])
        self._folders.sync_or_remove(self._root / folder for folder in touched)

    def sweep_unfinished(self, min_age_s: float) -> int:
        """See `StateBackend.sweep_unfinished`. A file's age is that of its last write.

        A writer whose folder goes before its file is in it makes the folder again.
        """
        youngest = time.time() - min_age_s
        swept, empty = builtins.list[Path](), builtins.list[Path]()
        for place, names, entries in self._walk(""):
            if place and not entries:
                empty.append(self._root / place)
            for name in filter(_UNFINISHED.fullmatch, names):
                if _written_before(file := self._root / place / name, youngest):
                    file.unlink(missing_ok=True)
                    swept.append(file.parent)
        self._folders.sync_or_remove([*swept, *empty])
        return len(swept)

    @contextmanager
    def _unfinished(self, final: str) -> Iterator[tuple[int, str, set[Path]]]:
        """Give a hidden file beside `final`; at the end remove it and close its descriptor."""
        temporary = f"{final.rpartition('/')[0]}/.{os.urandom(16).hex()}.tmp"
        descriptor, made = self._folders.open_new(temporary)
        try:
            yield descriptor, temporary, made
        finally:
            os.close(descriptor)
            with suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108 - Path is slow

    def _walk(self, prefix: str) -> Iterator[tuple[str, builtins.list[str], int]]:
        """Give every folder from `prefix` down, the names of its files, and the number of its entries."""
        # By names only. fsspec's find() asks for the details of every entry, and when a folder
        # fails, it leaves it out without a word (on_error="omit"): a denied folder in any release,
        # in older ones a file that vanishes in between. It would look like a missing manifest.
        prefix = check_prefix(prefix)
        folders = [f"{prefix}/" if prefix else ""]
        while folders:
            folder = folders.pop()
            try:
                names, below = builtins.list[str](), builtins.list[str]()
                with os.scandir(f"{self._place}{folder}".rstrip("/") or "/") as entries:
                    for entry in entries:
                        (below if entry.is_dir() else names).append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                continue  # no such folder, or it vanished, which only an empty one does
            yield folder, names, len(names) + len(below)
            folders += [f"{folder}{name}/" for name in below if not name.startswith(".")]


def _link(descriptor: int, temporary: str, final: str) -> None:
    """Give the finished file its name, unless that is taken. This is the atomic step of a create."""
    try:
        os.link(temporary, final)
    except FileExistsError as error:
        # On NFS the reply to a link that was made can get lost, and the repeated request finds the
        # name taken by its own file. The number of the file's names tells: see open(2), O_EXCL.
        if os.fstat(descriptor).st_nlink == 2:
            return
        if Path(final).is_dir():
            raise StateBackendError(
                f"{final} is a folder, so no object can have its name"
            ) from None
        raise FileExistsError(errno.EEXIST, "the object exists already", final) from error
    except FileNotFoundError as error:
        raise StateBackendError(
            f"the unfinished file of {final} is gone: a sweep took it for a dead writer's, or "
            "something else deletes files there. Sweep with a higher age and write it again"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StateBackendError(
            f"the mount of {final} has no hard links ({error.strerror}), so it has no atomic "
            "create. Use a mount that has them, such as ext4, XFS or NFS"
        ) from error


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such object", path)


def _written_before(file: Path, moment: float) -> bool:
    try:
        return file.stat().st_mtime < moment
    except FileNotFoundError:
        return False  # its writer has finished
