"""Where a write-ahead log keeps its objects: paths and bytes, with three guarantees.

`StateBackend` states them, `open_backend` gives a store for a URL. See the README beside this
file, and `wal_sink.testing.contracts.state_backend` for a store of your own.
"""

from state_backends.base import StateBackend
from state_backends.errors import StateBackendError
from state_backends.local import LocalBackend
from state_backends.location import child_url, open_backend, url_scheme
from state_backends.memory import MemoryBackend
from state_backends.object_store import ObjectStoreBackend
from state_backends.paths import check_data, check_path, check_prefix
from state_backends.s3 import S3Backend
from state_backends.storage_options import StorageOptions

__all__ = [
    "LocalBackend",
    "MemoryBackend",
    "ObjectStoreBackend",
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
