"""A folder as another host sees it, whose listings are old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from state_backends import LocalBackend


class CachingMount(LocalBackend):
    """The same folder as another host sees it, which keeps what it has listed until it is told to forget.

    :param asks_again: whether this host asks the server after a change of its own in a folder, as NFS does.
    """

    def __init__(self, root: Path, *, asks_again: bool) -> None:
        super().__init__(root)
        self.asks_again = asks_again
        self._cached: dict[str, list[tuple[str, str]]] = {}
        self._absent: set[str] = set()

    def _is_own(self, folder: str) -> bool:
        return False

    def _files(self, prefix: str) -> Iterator[tuple[str, str]]:
        found, folder = list(super()._files(prefix)), prefix.rstrip("/")
        made_here = any(name.startswith(".") for _, name in found)
        if self.asks_again and made_here:
            self._absent = {path for path in self._absent if not path.startswith(prefix)}
            if folder in self._cached:
                self._cached[folder] = found
        yield from self._cached.get(folder, found)

    def read(self, path: str) -> bytes:
        if path in self._absent:
            raise FileNotFoundError(path)
        return super().read(path)

    def delete(self, paths: Iterable[str]) -> None:
        deleted = list(paths)
        super().delete(deleted)
        if self.asks_again:
            for folder in {path.rpartition("/")[0] for path in deleted}:
                self._cached.pop(folder, None)

    def cache(self, prefix: str) -> None:
        """Answer a listing of this folder from now on with what is there at this moment."""
        self._cached[prefix.rstrip("/")] = list(super()._files(prefix))

    def cache_absence(self, path: str) -> None:
        """Answer from now on that there is no such object, as it is at this moment."""
        self._absent.add(path)

    def forget(self) -> None:
        """Answer what is there."""
        self._cached.clear()
        self._absent.clear()
