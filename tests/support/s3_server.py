"""An S3 server by moto, in its own process: `python -m tests.support.s3_server` prints its port.

The name of a bucket begins with a behaviour, see `Front`.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

Environment = dict[str, Any]

_ERROR = "<Error><Code>{code}</Code><Message>{code}</Message></Error>"
_LEFT = b"<DeleteResult><Error><Key>kept</Key><Code>AccessDenied</Code></Error></DeleteResult>"

_WITH_NUMBER = {"lossy", "busy", "conflict", "expiring", "paging"}


class Front:
    """A WSGI application in front of moto's.

    It handles one request at a time: moto checks for an object and writes it in two steps, S3 in one.

    `careless-…`  ignores If-None-Match; `careful-…` ignores it only when an upload is completed
    `lossy-N-…`   performs writes, and drops the connection for the first N answers of each object
    `busy-N-…`    answers the first N requests of each kind and object with SlowDown
    `conflict-N-…`  answers the first N conditional writes of each object with 409, as for a concurrent write
    `expiring-N-…`  answers that the credentials have expired, from the Nth request on
    `paging-N-…`  lists N names in a page
    `denied-…`    answers AccessDenied
    `keeping-…`   answers to bulk deletions that no object was deleted

    After `/hold/NAME`, the next copy to an object whose path ends with NAME waits for `/release/NAME`.
    `/held/NAME` returns whether a copy waits. `/again` counts the requests of each object from 1 again.
    """

    def __init__(self) -> None:
        # moto's dispatcher for all services lists the folder of moto's code at each request.
        self._moto = create_backend_app("s3")
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._holds: dict[str, threading.Event] = {}
        self._held: dict[str, threading.Event] = {}

    def __call__(self, environment: Environment, start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        path = environment["PATH_INFO"]
        if "HTTP_X_AMZ_COPY_SOURCE" in environment:
            for name in [hold for hold in self._holds if path.endswith(hold)]:
                self._held[name] = self._holds.pop(name)
                self._held[name].wait()
        with self._lock:
            if (changed := self._told(*path[1:].partition("/")[::2])) is not None:
                start("200 OK", [])
                return [json.dumps(changed).encode()]
            self._counts[_kind(environment)] += 1
            return self._answer(environment, start)

    def _told(self, verb: str, name: str) -> object:
        """Execute a command of a test; return None for a request to a bucket."""
        match verb:
            case "counts":
                counts, self._counts = self._counts, Counter()
                return counts
            case "again":
                self._seen.clear()
                return True
            case "hold":
                self._holds[name] = threading.Event()
                return self._held.pop(name, None) is None
            case "held":
                return name in self._held
            case "release":
                self._held.pop(name).set()
                return True
        return None

    def _answer(self, environment: Environment, start: Callable[..., Any]) -> Iterable[bytes]:
        behaviour, _, rest = environment["PATH_INFO"].lstrip("/").partition("-")
        times = int(rest.partition("-")[0]) if behaviour in _WITH_NUMBER else 0
        completes = "uploadId=" in environment["QUERY_STRING"]
        conditional = "HTTP_IF_NONE_MATCH" in environment
        if behaviour == "careless" or (behaviour == "careful" and completes):
            environment.pop("HTTP_IF_NONE_MATCH", None)
        if behaviour == "paging" and _kind(environment) == "LIST":
            environment["QUERY_STRING"] += f"&max-keys={times}"
        if not _makes_bucket(environment) and (
            text := self._refusal(environment, behaviour, times)
        ):
            return _refuse(environment, start, *text)
        if behaviour == "keeping" and environment["QUERY_STRING"].startswith("delete"):
            environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"]))
            start("200 OK", [("Content-Type", "application/xml")])
            return [_LEFT]
        upload = (
            f"{environment['PATH_INFO']} {parse_qs(environment['QUERY_STRING']).get('uploadId')}"
        )
        if completes and environment["REQUEST_METHOD"] == "POST" and self._seen[upload]:
            # Most stores answer this; moto completes it again, and fails if the upload was aborted.
            return _refuse(environment, start, "404 Not Found", "NoSuchUpload")

        def started(status: str, *rest: Any) -> Any:
            ends = completes and environment["REQUEST_METHOD"] in {"POST", "DELETE"}
            self._seen[upload] += ends and status.startswith(
                "2"
            )  # a refused request does not end the upload
            return start(status, *rest)

        answer = list(self._moto(environment, started))
        writes = environment["REQUEST_METHOD"] == "PUT" and not _makes_bucket(environment)
        if behaviour == "lossy" and (conditional or writes) and self._nth(environment) <= times:
            environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

    def _refusal(
        self, environment: Environment, behaviour: str, times: int
    ) -> tuple[str, str] | None:
        """Return the status and code of a refused request; None if it is not refused."""
        match behaviour:
            case "denied":
                return "403 Forbidden", "AccessDenied"
            case "busy" if self._nth(environment) <= times:
                return "503 Slow Down", "SlowDown"
            case "conflict" if (
                "HTTP_IF_NONE_MATCH" in environment and self._nth(environment) <= times
            ):
                return "409 Conflict", "ConditionalRequestConflict"
            case "expiring":
                self._seen[behaviour] += 1
                return (
                    ("400 Bad Request", "ExpiredToken") if self._seen[behaviour] >= times else None
                )
        return None

    def _nth(self, environment: Environment) -> int:
        request = f"{environment['REQUEST_METHOD']} {environment['PATH_INFO']}"
        self._seen[request] += 1
        return self._seen[request]


def _kind(environment: Environment) -> str:
    """Return the kind of a request, as S3 bills it."""
    method, query = environment["REQUEST_METHOD"], environment["QUERY_STRING"]
    if method == "GET" and "list-type" in query:
        return "LIST"
    return "DELETE" if query.startswith("delete") else str(method)


def _makes_bucket(environment: Environment) -> bool:
    path = environment["PATH_INFO"].strip("/")
    return environment["REQUEST_METHOD"] == "PUT" and "/" not in path


def _refuse(
    environment: Environment, start: Callable[..., Any], status: str, code: str
) -> Iterable[bytes]:
    environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
    start(status, [("Content-Type", "application/xml")])
    return [_ERROR.format(code=code).encode()]


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, Front(), threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
