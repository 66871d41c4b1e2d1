"""Objects in a bucket of S3, or of a compatible store that supports If-None-Match."""

import builtins
import errno
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from state_backends.base import StateBackendError, StorageOptions, is_path
from state_backends.object_store import ObjectStoreBackend, client_of, need

_DENIED = {"401", "403", "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId",
           "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch"}  # fmt: skip
_ELSEWHERE = {"301", "307", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
              "PermanentRedirect", "TemporaryRedirect"}  # fmt: skip
_LATER = {"ConditionalRequestConflict", "InternalError", "OperationAborted", "RequestTimeout",
          "ServiceUnavailable", "SlowDown", "Throttling", "XAmzContentSHA256Mismatch"}  # fmt: skip
_MISSING = {"404", "NoSuchKey", "NoSuchUpload"}
_NO_CREDENTIALS = {"CredentialRetrievalError", "NoCredentialsError", "PartialCredentialsError",
                   "ProfileNotFound", "TokenRetrievalError"}  # fmt: skip


def explain(error: Exception, url: str) -> Exception | None:
    """Translate an error of s3fs; return None if the error is not from S3 or its client."""
    if isinstance(error, StateBackendError):
        return error
    answer = _answer(error)
    return _unanswered(error, url) if answer is None else _answered(answer, url)


def _answered(answer: dict[str, Any], url: str) -> Exception:
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":  # s3fs reports it as a missing object
        return StateBackendError(f"there is no bucket for {url}: make it, or correct the URL")
    if code in _MISSING:
        return FileNotFoundError(errno.ENOENT, f"there is no such object ({code})", url)
    if code == "PreconditionFailed" or status == 412:
        return FileExistsError(errno.EEXIST, "a condition on the object does not hold", url)
    if code in _LATER or status == 429 or (status >= 500 and status != 501):
        return ConnectionError(f"{url} answers {code or status}: try again later")
    return StateBackendError(f"{url} cannot be used, S3 answers {code or status}: {_remedy(code)}")


def refused_deletion(url: str, failed: Sequence[dict[str, Any]]) -> Exception:
    """Return the error for objects that a bulk deletion did not delete. S3 answers 200 even then."""
    code, key = failed[0].get("Code", ""), failed[0].get("Key", "")
    message = f"{len(failed)} objects of {url}, such as {key}, could not be deleted ({code})"
    if code in _LATER:
        return ConnectionError(message)
    return StateBackendError(f"{message}: {_remedy(str(code))}")


def _remedy(code: str) -> str:
    if code in _DENIED:
        return (
            "give valid credentials (storage options, environment or role) with the permissions "
            "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and s3:ListBucket; "
            "without s3:ListBucket, S3 denies access to a missing object"
        )
    if code in _ELSEWHERE:
        return (
            "the bucket is in another region or at another endpoint: give endpoint_url, or "
            "region_name inside client_kwargs, as storage options"
        )
    if code in {"501", "NotImplemented"}:
        return (
            "it lacks a request that is needed. Choose a store with conditional writes (If-None-Match), "
            "as S3 has them"
        )
    return "correct the URL or the storage options"


def _answer(error: BaseException | None) -> dict[str, Any] | None:
    """Return the answer of S3 from botocore's error, which is a cause of the error of s3fs."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return response
        error = error.__cause__
    return None


def _unanswered(error: Exception, url: str) -> Exception | None:
    from aiohttp import ClientError  # noqa: PLC0415 - comes with s3fs, an extra
    from botocore import exceptions, parsers  # noqa: PLC0415 - the same

    name = type(error).__name__
    if name in _NO_CREDENTIALS:
        return StateBackendError(
            f"{url} cannot be used, there are no credentials for S3 ({name}): give key and secret as "
            "storage options, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run under a role"
        )
    network = (
        exceptions.HTTPClientError,
        exceptions.ConnectionError,
        parsers.ResponseParserError,
        ClientError,
    )
    if isinstance(error, network):
        return ConnectionError(f"{url} does not answer: {name}: {error}")
    if isinstance(error, exceptions.BotoCoreError):
        return StateBackendError(
            f"{url} cannot be used: {name}: {error}. Correct the URL or the storage options"
        )
    return None


_DELETED_AT_ONCE = 1_000
"""The maximum number of objects that one request can delete."""

_TRIES_OF_S3FS = 2
"""The tries of s3fs for a request, instead of five; see `_bounded`."""


class S3Backend(ObjectStoreBackend):
    """Objects below a prefix of a bucket.

    A writer that is killed during an upload in parts leaves the upload unfinished; a lifecycle rule of the
    bucket has to abort it.

    :param storage_options: options of `s3fs.S3FileSystem`, such as `endpoint_url`, `key` and `secret`.
    """

    _protocol = "s3"
    _nonce = "state-backend-nonce"

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        need("s3fs", "s3", "S3")
        super().__init__(url, storage_options)
        self._bounded = StorageOptions(_bounded(self._options))

    @property
    def _fs(self) -> AbstractFileSystem:
        client = client_of("s3", self._bounded, partial(fsspec.filesystem, "s3"))
        client.retries = _TRIES_OF_S3FS
        return client

    def _key(self, path: str) -> str:
        if "?versionId=" in path:  # s3fs would remove it from the key
            raise ValueError(f"path {path!r} names a version")
        return super()._key(path)

    def folders(self, prefix: str = "") -> builtins.list[str]:
        """See `StateBackend.folders`. A listing with a delimiter returns the folders."""
        key = self._folder(prefix).partition("/")[2]
        pages = self._repeated(lambda: builtins.list(self._listed(key, Delimiter="/")))
        prefixes = (entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", []))
        names = (prefix_key.removeprefix(key).rstrip("/") for prefix_key in prefixes)
        return sorted(name for name in names if is_path(name))

    def _find(self, below: str) -> dict[str, int]:
        # s3fs's find() sends two more requests if the folder has no objects, and older releases return
        # folders that a console or Hadoop has made as objects.
        pages = self._listed(below.partition("/")[2])
        listed = (item for page in pages for item in page.get("Contents", []))
        return {f"{self._bucket}/{item['Key']}": int(item["Size"]) for item in listed}

    def _listed(self, prefix: str, **arguments: str) -> Iterator[dict[str, Any]]:
        """Yield each page of a listing."""
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, **arguments, **token)
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _remove(self, keys: builtins.list[str]) -> None:
        # s3fs's rm() takes `*` in a key for a pattern, and ignores objects that could not be deleted.
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            objects = [
                {"Key": key.partition("/")[2]} for key in keys[start : start + _DELETED_AT_ONCE]
            ]
            answer = self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
            if failed := answer.get("Errors"):
                raise refused_deletion(self.url, failed)

    def _marked(self, nonce: str) -> dict[str, Any]:
        return {"Metadata": {self._nonce: nonce}}

    def _metadata(self, key: str) -> Mapping[str, str]:
        return dict(self._fs.metadata(key))

    def _explain(self, error: Exception) -> Exception | None:
        return explain(error, self.url)

    def _try_promises(self, path: str) -> None:
        super()._try_promises(path)
        self._try_parts()

    def _broken(self, fault: str) -> StateBackendError:
        return StateBackendError(
            f"{self.url} cannot hold a write-ahead log: {fault}, so it ignores If-None-Match, or this "
            "botocore does not send it. Choose a store with conditional writes, as S3 has them, "
            "and a version of botocore above 1.35.20"
        )

    def _call(self, request: str, **arguments: Any) -> dict[str, Any]:
        return dict(self._fs.call_s3(request, Bucket=self._bucket, **arguments))


def _bounded(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options with fewer retries, and with one request at a time.

    The retries of botocore (five), of s3fs (five) and of `_repeated` would multiply to minutes. With one
    request at a time, s3fs does not request an object's size before it reads the object.
    """
    config = options.get("config_kwargs")
    retries = {"mode": "standard", "total_max_attempts": 3}
    return {
        "max_concurrency": 1,
        **options,
        "config_kwargs": {"retries": retries, **(config if isinstance(config, dict) else {})},
    }
