"""Objects in a container of Azure Blob Storage, and of Data Lake Storage Gen2, which adlfs speaks.

A create has the condition `If-None-Match: *`. Blocks that nobody commits are deleted by Azure after a week.
"""

import errno
from collections.abc import Mapping
from typing import Any

from fsspec.asyn import sync

from state_backends.base import StateBackendError
from state_backends.object_store import PART, ObjectStoreBackend, need


class AzureBackend(ObjectStoreBackend):
    """Objects below a prefix of a container. Each carries the nonce of the call that created it, as in S3.

    :param url: as Hadoop has it, `abfss://<container>@<account>.dfs.core.windows.net/<prefix>`; or as adlfs
        has it, `abfs://<container>/<prefix>`, with the account in `storage_options`.
    :param storage_options: of `adlfs.AzureBlobFileSystem`, such as `account_name` and `account_key`, or
        `connection_string`.
    """

    _protocol = "abfs"
    _nonce = "state_backend_nonce"  # a name there is an identifier

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        need("adlfs", "azure", "Azure")
        scheme, _, rest = url.partition("://")
        place, _, prefix = rest.partition("/")
        container, at, host = place.partition("@")
        account, dot, domain = host.partition(".")
        if at and not (account and domain.startswith(("dfs.", "blob."))):
            # The URL is not repeated: people put secrets into it.
            raise StateBackendError(
                "the URL of a container in Azure is abfss://<container>@<account>.dfs.core.windows.net/<prefix>"
            )
        options = dict(storage_options or {})
        if at and options.setdefault("account_name", account) != account:
            raise StateBackendError(
                f"the URL names the account {account}, the storage options another one: remove account_name"
            )
        super().__init__(f"{scheme}://{container}/{prefix}", options)
        self.url = (
            f"{self._protocol}://{container}{at}{account}{dot}{domain}/{self._prefix}".rstrip("/")
        )

    # --- see ObjectStoreBackend ------------------------------------------------------------------

    def _find(self, below: str) -> dict[str, int]:
        # Not adlfs's find(): it looks at folders, and a missing container is to it like a missing folder.
        client, prefix = self._fs, below.partition("/")[2]

        async def listed() -> dict[str, int]:
            container = client.service_client.get_container_client(container=self._bucket)
            async with container:
                blobs = container.list_blobs(name_starts_with=prefix)
                # In Data Lake Storage a folder is an empty object; an object of ours never is.
                return {
                    f"{self._bucket}/{blob.name}": blob.size async for blob in blobs if blob.size
                }

        return dict(sync(client.loop, listed))

    def _put_new(self, key: str, data: bytes, nonce: str) -> None:
        # Not adlfs's pipe_file(): it takes no metadata.
        client, name = self._fs, key.partition("/")[2]

        async def put() -> None:
            blob = client.service_client.get_blob_client(container=self._bucket, blob=name)
            async with blob:
                await blob.upload_blob(data, overwrite=False, **self._marked(nonce))

        sync(client.loop, put)

    def _begin(self, key: str, nonce: str) -> Any:
        return _Blocks(self._fs.open(key, "xb", block_size=PART, **self._marked(nonce)))

    def _marked(self, nonce: str) -> dict[str, Any]:
        return {
            "metadata": {"is_directory": "false", self._nonce: nonce}
        }  # the first is adlfs's own

    def _try_promises(self, path: str) -> None:
        super()._try_promises(path)
        self._try_parts()

    def _explain(self, error: Exception) -> Exception | None:
        return explain(error, self.url)


class _Blocks:
    """A file of adlfs whose blocks `commit` commits; adlfs does that in `close`, and only once."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._failed: Exception | None = None
        self.closed = False

    def write(self, data: bytes) -> int:
        return int(self._file.write(data))

    def close(self) -> None:
        """Nothing is left to send but what commits."""

    def commit(self) -> None:
        """Commit the blocks. A second call after a failure raises the same: adlfs would do nothing."""
        if self._failed is not None:
            raise self._failed
        try:
            self._file.close()
        except Exception as error:
            self._failed = error
            raise

    def discard(self) -> None:
        """Leave the blocks uncommitted; or being collected as garbage would commit them."""
        self._file.closed = True


def explain(error: Exception, url: str) -> Exception | None:
    """Return what to raise for an error of adlfs; None for one that is not about the store."""
    from azure.core import exceptions  # noqa: PLC0415 - comes with adlfs, an extra

    if isinstance(error, (FileExistsError, FileNotFoundError)):
        return None
    answer: BaseException | None = error  # adlfs translates some, and keeps Azure's as the cause
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
            " connection_string as storage options, or an identity of the machine with the role Storage Blob"
            " Data Contributor)"
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
