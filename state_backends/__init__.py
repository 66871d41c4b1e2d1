"""Stores for the objects of a write-ahead log: paths and bytes, with three guarantees.

`StateBackend` states the guarantees; `open_backend` opens the store at a URL. The classes of object stores
are imported on first use, so a process without them needs none of their clients.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from state_backends.base import (
    StateBackend,
    StateBackendError,
    StorageOptions,
    check_data,
    check_path,
    check_prefix,
)
from state_backends.local import LocalBackend
from state_backends.location import child_url, open_backend, url_scheme
from state_backends.memory import MemoryBackend

if TYPE_CHECKING:
    from state_backends.azure import AzureBackend
    from state_backends.gcs import GcsBackend
    from state_backends.s3 import S3Backend

__all__ = [
    "AzureBackend",
    "GcsBackend",
    "LocalBackend",
    "MemoryBackend",
    "S3Backend",
    "StateBackend",
    "StateBackendError",
    "StorageOptions",
    "check_data",
    "check_path",
    "check_prefix",
    "child_url",
    "open_backend",
    "url_scheme",
]

_LAZY = {
    "AzureBackend": "state_backends.azure",
    "GcsBackend": "state_backends.gcs",
    "S3Backend": "state_backends.s3",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
