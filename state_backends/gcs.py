"""Objects in a bucket of Google Cloud Storage, by its JSON API and gcsfs.

A create has the condition `ifGenerationMatch=0`, which fails if the object exists. Google deletes an upload
in parts that is not completed after a week.
"""

import errno
from collections.abc import Callable, Mapping
from typing import Any

from fsspec.spec import AbstractFileSystem

from state_backends.base import StateBackendError
from state_backends.object_store import ObjectStoreBackend, client_of, need

_LATER = {408, 429, 500, 502, 503, 504}


class GcsBackend(ObjectStoreBackend):
    """Objects below a prefix of a bucket.

    :param storage_options: options of `gcsfs.GCSFileSystem`, such as `token` and `project`.
    """

    _protocol = "gs"
    _nonce = "state-backend-nonce"

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        need("gcsfs", "gcs", "Google Cloud Storage")
        super().__init__(url, storage_options)

    @property
    def _fs(self) -> AbstractFileSystem:
        # `fsspec.filesystem("gs")` would call another API, by gRPC, for the type of each bucket.
        from gcsfs.core import GCSFileSystem  # noqa: PLC0415 - an extra

        return client_of(self._protocol, self._options, GCSFileSystem)

    def _find(self, below: str) -> dict[str, int]:
        # gcsfs's find() returns no objects for a missing bucket.
        sizes: dict[str, int] = {}
        token: dict[str, str] = {}
        while True:
            page = self._page(below.partition("/")[2], token)
            for blob in page.get("items", []):
                sizes[f"{self._bucket}/{blob['name']}"] = int(blob["size"])
            if not page.get("nextPageToken"):
                return sizes
            token = {"pageToken": page["nextPageToken"]}

    def _page(self, prefix: str, parameters: dict[str, str]) -> dict[str, Any]:
        wanted = {"prefix": prefix, "fields": "items(name,size),nextPageToken", **parameters}
        try:
            return dict(self._fs.call("GET", "b/{}/o", self._bucket, **wanted, json_out=True))
        except FileNotFoundError as error:
            raise StateBackendError(
                f"there is no bucket for {self.url}: make it, or correct the URL"
            ) from error

    def _marked(self, nonce: str) -> dict[str, Any]:
        return {"metadata": {self._nonce: nonce}}

    def _conditionally(
        self, path: str, write: Callable[[], object], is_ours: Callable[[], bool]
    ) -> None:
        try:
            super()._conditionally(path, write, is_ours)
        except StateBackendError:
            self._page(self._prefix, {"maxResults": "1"})  # raises an error if there is no bucket
            raise

    def _explain(self, error: Exception) -> Exception | None:
        return explain(error, self.url)


def explain(error: Exception, url: str) -> Exception | None:
    """Translate an error of gcsfs; return None if the error is not from the store or its client."""
    from aiohttp import ClientError  # noqa: PLC0415 - comes with gcsfs, an extra
    from gcsfs.retry import HttpError  # noqa: PLC0415 - the same
    from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415 - the same

    if isinstance(error, (ClientError, TransportError)):
        return ConnectionError(f"{url} does not answer: {type(error).__name__}: {error}")
    code = _code(error) if isinstance(error, HttpError) else 0
    denied = isinstance(error, OSError) and str(error).startswith("Forbidden")
    if isinstance(error, GoogleAuthError) or code == 401 or denied:
        return StateBackendError(
            f"{url} cannot be used ({type(error).__name__}): give valid credentials (a service account,"
            " GOOGLE_APPLICATION_CREDENTIALS, or the option token) with the permissions"
            " storage.objects.create, .get, .list and .delete"
        )
    if code in _LATER:
        return ConnectionError(f"{url} answers {code}: try again later")
    if code == 404:
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    return None


def _code(error: Any) -> int:
    try:
        return int(error.code)
    except (TypeError, ValueError):
        return 0
