"""Translates the errors of S3 and of its clients into those of a state backend."""

import errno
from collections.abc import Sequence
from typing import Any

from state_backends.errors import StateBackendError

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
    """Return what to raise for an error of s3fs; None for one that is not about S3.

    `StateBackendError`: the message says what to change. `ConnectionError`: S3 did not answer, or
    asks to come later. `FileExistsError`, `FileNotFoundError`: as they are.
    """
    if isinstance(error, StateBackendError):
        return error
    answer = _answer(error)
    return _unanswered(error, url) if answer is None else _answered(answer, url)


def _answered(answer: dict[str, Any], url: str) -> Exception:
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":  # to s3fs a missing bucket is like a missing object
        return StateBackendError(f"there is no bucket for {url}: make it, or correct the URL")
    if code in _MISSING:
        return FileNotFoundError(errno.ENOENT, f"there is no such object ({code})", url)
    if code == "PreconditionFailed" or status == 412:
        return FileExistsError(errno.EEXIST, "a condition on the object does not hold", url)
    if code in _LATER or status == 429 or (status >= 500 and status != 501):
        return ConnectionError(f"{url} answers {code or status}: ask it again later")
    return StateBackendError(f"{url} cannot be used, S3 answers {code or status}: {_remedy(code)}")


def refused_deletion(url: str, failed: Sequence[dict[str, Any]]) -> Exception:
    """Return the error for objects that a bulk deletion has left; its answer is a success all the same."""
    code, key = failed[0].get("Code", ""), failed[0].get("Key", "")
    what = f"{len(failed)} objects of {url}, such as {key}, could not be deleted ({code})"
    if code in _LATER:
        return ConnectionError(what)
    return StateBackendError(f"{what}: {_remedy(str(code))}")


def _remedy(code: str) -> str:
    if code in _DENIED:
        return (
            "give valid credentials (storage options, environment or role) that may "
            "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and s3:ListBucket "
            "there; without s3:ListBucket a missing object looks like a forbidden one"
        )
    if code in _ELSEWHERE:
        return (
            "the bucket is in another region or behind another endpoint: give endpoint_url, or "
            "region_name inside client_kwargs, as storage options"
        )
    if code in {"501", "NotImplemented"}:
        return (
            "it does not know a request that is needed. Choose a store that honours conditional "
            "writes (If-None-Match), as S3 does"
        )
    return "correct the URL or the storage options"


def _answer(error: BaseException | None) -> dict[str, Any] | None:
    """Return what S3 answered: s3fs translates errors, and keeps botocore's as the cause."""
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
