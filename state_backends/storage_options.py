"""What opens a store beside its URL: an endpoint, a region, keys."""

from collections.abc import Iterator, Mapping


class StorageOptions(Mapping[str, object]):
    """Keyword arguments for an fsspec file system. Printing them shows their names only."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self)})"
