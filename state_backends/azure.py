"""Objects in a container of Azure Blob Storage or Data Lake Storage Gen2, by adlfs.

A create has the condition `If-None-Match: *`. Azure deletes blocks that are not committed after a week.
"""

import errno
from collections.abc import Mapping
from typing import Any

from fsspec.asyn import sync

from state_backends.base import StateBackendError
from state_backends.object_store import PART, ObjectStoreBackend, need


class AzureBackend(ObjectStoreBackend):
    """Objects below a prefix of a container.

    :param url: `abfss://<container>@<account>.dfs.core.windows.net/<prefix>`, as in Hadoop; or
        `abfs://<container>/<prefix>`, as in adlfs, with the account in `storage_options`.
    :param storage_options: options of `adlfs.AzureBlobFileSystem`, such as `account_name` and `account_key`,
        or `connection_string`.
    """

    _protocol = "abfs"
    _nonce = "state_backend_nonce"  # names of metadata in Azure are identifiers

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        need("adlfs", "azure", "Azure")
        scheme, _, rest = url.partition("://")
        place, _, prefix = rest.partition("/")
        container, at, host = place.partition("@")
        account, dot, domain = host.partition(".")
        if at and not (account and domain.startswith(("dfs.", "blob."))):
            # The message does not contain the URL, which may contain a secret.
            raise StateBackendError(
                "the URL of a container in Azure is abfss://<container>@<account>.dfs.core.windows.net/<prefix>"
            )
        options = dict(storage_options or {})
        if at and options.setdefault("account_name", account) != account:
            raise StateBackendError(
                f"the URL names the account {account}, but the storage options name another one: remove"
                " account_name"
            )
        super().__init__(f"{scheme}://{container}/{prefix}", options)
        self.url = (
            f"{self._protocol}://{container}{at}{account}{dot}{domain}/{self._prefix}".rstrip("/")
        )

    def _find(self, below: str) -> dict[str, int]:
        # adlfs's find() lists each folder, and returns no objects for a missing container.
        client, prefix = self._fs, below.partition("/")[2]

        async def listed() -> dict[str, int]:
            container = client.service_client.get_container_client(container=self._bucket)
            async with container:
                blobs = container.list_blobs(name_starts_with=prefix)
                # An empty object is a folder of Data Lake Storage.
                return {
                    f"{self._bucket}/{blob.name}": blob.size async for blob in blobs if blob.size
                }

        return dict(sync(client.loop, listed))

    def _put_new(self, key: str, data: bytes, nonce: str) -> None:
        # adlfs's pipe_file() has no parameter for metadata.
        client, name = self._fs, key.partition("/")[2]

        async def put() -> None:
            blob = client.service_client.get_blob_client(container=self._bucket, blob=name)
            async with blob:
                await blob.upload_blob(data, overwrite=False, **self._marked(nonce))

        sync(client.loop, put)

    def _begin(self, key: str, nonce: str) -> Any:
        return _Blocks(self._fs.open(key, "xb", block_size=PART, **self._marked(nonce)))

    def _marked(self, nonce: str) -> dict[str, Any]:
        # adlfs also writes is_directory into the metadata of its objects.
        return {"metadata": {"is_directory": "false", self._nonce: nonce}}

    def _try_promises(self, path: str) -> None:
        super()._try_promises(path)
        self._try_parts()

    def _explain(self, error: Exception) -> Exception | None:
        return explain(error, self.url)


class _Blocks:
    """A file of adlfs with a separate `commit`; the `close` of adlfs would commit its blocks."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._failed: Exception | None = None
        self.closed = False

    def write(self, data: bytes) -> int:
        return int(self._file.write(data))

    def close(self) -> None:
        """Do nothing, since `commit` sends the last block."""

    def commit(self) -> None:
        """Commit the blocks. After an error, a second call raises the same error.

        In a second call adlfs would do nothing.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._file.close()
        except Exception as error:
            self._failed = error
            raise

    def discard(self) -> None:
        """Abandon the file. Not even the garbage collector commits its blocks then."""
        self._file.closed = True


def explain(error: Exception, url: str) -> Exception | None:
    """Translate an error of adlfs; return None if the error is not from Azure or its client."""
    from azure.core import exceptions  # noqa: PLC0415 - comes with adlfs, an extra

    if isinstance(error, (FileExistsError, FileNotFoundError)):
        return None
    answer: BaseException | None = error  # the error of Azure may be a cause of the error of adlfs
    while answer is not None and not isinstance(answer, exceptions.AzureError):
        answer = answer.__cause__
    if answer is None:
        return None
    code = str(getattr(answer, "error_code", "") or type(answer).__name__)
    status = int(getattr(answer, "status_code", 0) or 0)
    denied = isinstance(answer, exceptions.ClientAuthenticationError) or status in {401, 403}
    unanswered = (exceptions.ServiceRequestError, exceptions.ServiceResponseError)
    if code == "ContainerNotFound":
        explained: Exception = StateBackendError(
            f"there is no container for {url}: make it, or correct the URL"
        )
    elif denied:
        explained = StateBackendError(
            f"{url} cannot be used ({code}): give valid credentials (account_key, sas_token or"
            " connection_string as storage options, or a machine identity with the role Storage Blob Data"
            " Contributor)"
        )
    elif isinstance(answer, exceptions.ResourceExistsError) or status == 412:
        explained = FileExistsError(errno.EEXIST, code, url)
    elif isinstance(answer, exceptions.ResourceNotFoundError):
        explained = FileNotFoundError(errno.ENOENT, code, url)
    elif isinstance(answer, unanswered) or status == 429 or status >= 500:
        explained = ConnectionError(f"{url} does not answer: {code}")
    else:
        explained = OSError(errno.EIO, f"{url}: {code}")
    return explained
