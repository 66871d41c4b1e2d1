"""Undocumented names of deltalake, each with a reason; `tests/delta/test_delta_rs.py` has their canaries."""

from __future__ import annotations

from typing import Any

from deltalake.fs import DeltaStorageHandler


def storage_of(path: str, options: dict[str, str] | None) -> Any:
    """Return delta-rs' own access to the files below a path, by its own storage options.

    Its public face, `DeltaStorageHandler`, hands a stream to Arrow that refuses what Arrow writes (1.6.6 with
    pyarrow 26: 'Buffer' object is not an instance of 'bytes'). What lies below it takes bytes.
    """
    return DeltaStorageHandler(path, options)._handler  # noqa: SLF001
