"""Lets racers work on a state backend, in processes or threads that start together.

Module-level functions, because a spawned process finds them by name.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

from state_backends import StateBackend

Racers = Literal["processes", "threads"]
PATIENCE_S = 120.0
"""How long racers wait for each other, in seconds, before the test fails."""

LARGE = 4_000_000


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...
    def abort(self) -> None: ...


_line: _Barrier  # the starting line of the race that this process or thread is in


def together(
    racers: Racers, work: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]
) -> list[Any]:
    """Call every function of `work` with its arguments at the same time; return their results.

    The first error of a racer is raised. Threads switch often meanwhile: at the usual 5 ms, short
    calls would only ever run one after the other.
    """
    count = len(work)
    pool: Executor
    if racers == "processes":
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_enter, initargs=(context.Barrier(count),)
        )
    else:
        pool = ThreadPoolExecutor(count, initializer=_enter, initargs=(threading.Barrier(count),))
    with pool, _switching_often():
        futures = [pool.submit(_race, function, arguments) for function, arguments in work]
        errors = [error for error in (future.exception() for future in futures) if error]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):  # a follow-up of another's
                raise error
        return [future.result() for future in futures]


@contextmanager
def _switching_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def line_up() -> None:
    """Wait until every racer of this race is here."""
    _line.wait(PATIENCE_S)


def _enter(barrier: _Barrier) -> None:
    global _line  # noqa: PLW0603 - a barrier reaches a spawned process only as it starts
    _line = barrier


def _race(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        line_up()
        return function(*arguments)
    except BaseException:
        _line.abort()  # or the others would wait for this one
        raise


def content(path: str, version: object, size: int = 10_000) -> bytes:
    """Return `size` bytes that differ for each path and version, from the first byte on."""
    piece = sha256(f"{path} {version}".encode()).digest()
    return (piece * (size // len(piece) + 1))[:size]


def create_all(backend: StateBackend, way: str, paths: Sequence[str], name: str) -> list[str]:
    """Try to create every path, side by side with the other racers; return the paths won."""
    won = []
    for path in paths:
        line_up()
        try:
            if way == "create":
                backend.create(path, content(path, name))
            else:
                with backend.open_output(path) as output:
                    output.write(content(path, name))
        except FileExistsError:
            continue
        won.append(path)
    return won


def write_large(backend: StateBackend, paths: Sequence[str]) -> None:
    """Create large objects, in turn at once and piece by piece."""
    for number, path in enumerate(paths):
        data = content(path, "large", LARGE)
        line_up()
        if number % 2:
            backend.create(path, data)
        else:
            with backend.open_output(path) as output:
                for start in range(0, LARGE, LARGE // 10):
                    output.write(data[start : start + LARGE // 10])


def poll_large(backend: StateBackend, paths: Sequence[str]) -> None:
    """Look for each object until it is there; fail when it is ever there in part."""
    for path in paths:
        data = content(path, "large", LARGE)
        line_up()
        give_up = time.monotonic() + PATIENCE_S
        while not _is_there(backend, path, data):
            assert time.monotonic() < give_up, f"{path} did not appear"


def _is_there(backend: StateBackend, path: str, data: bytes) -> bool:
    listed = path in backend.list("large/")
    try:
        size, read = backend.size(path), backend.read(path)
    except FileNotFoundError:
        assert not listed, f"{path} is listed but cannot be read"
        return False
    assert size == len(data), f"{path} was visible with {size} of {len(data)} bytes"
    assert read == data, f"{path} was visible with {len(read)} of {len(data)} bytes or wrong ones"
    return True


def replace_often(backend: StateBackend, path: str, times: int) -> None:
    """Replace the object with versions of different length."""
    for version in range(1, times + 1):
        backend.replace(path, content(path, version, 10_000 + version * 100))


def read_replaced(backend: StateBackend, path: str, times: int) -> None:
    """Read until the last version comes; fail for bytes that are not one version."""
    versions = {
        content(path, version, 10_000 + version * 100): version for version in range(times + 1)
    }
    give_up = time.monotonic() + PATIENCE_S
    version: int | None = 0
    while version != times:
        data = backend.read(path)
        version = versions.get(data)
        assert version is not None, f"{path} was read torn: {len(data)} bytes of no one version"
        assert time.monotonic() < give_up, f"the last version of {path} did not appear"


def come_and_go(backend: StateBackend, folder: str, name: str, times: int) -> None:
    """Create an object, see that it is listed, delete it; the folder may go as well."""
    for number in range(times):
        path = f"{folder}/{number % 3}/{name}"
        backend.create(path, name.encode())
        assert path in backend.list(f"{folder}/{number % 3}"), f"{path} was created, not listed"
        assert backend.read(path) == name.encode()
        backend.delete([path])
        assert path not in backend.list(folder), f"{path} was deleted and is listed"


def come_and_go_until(backend: StateBackend, folder: str, name: str, end: str) -> None:
    """Create and delete until another racer creates the object `end`."""
    while end not in backend.list("ends"):
        come_and_go(backend, folder, name, 3)


def list_often(backend: StateBackend, stay: Sequence[str], times: int, end: str) -> None:
    """List everything again and again, then create `end`; fail when one of `stay` is missing."""
    try:
        for _ in range(times):
            missing = set(stay).difference(backend.list())
            assert not missing, f"{len(missing)} objects were not listed, such as {min(missing)}"
    finally:
        backend.create(end, b"x")


def kill_inside_output(backend: StateBackend, path: str) -> None:
    """Kill a process that has written a part of an object; return when it is dead."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ours, theirs:
        writer = context.Process(target=_write_and_wait, args=(backend, path, theirs))
        writer.start()
        theirs.close()  # so that a writer that fails is heard at once
        assert ours.poll(PATIENCE_S), "the writer did not get as far as its first bytes"
        assert ours.recv() == "written"
        writer.kill()
        writer.join()
        writer.close()


def kill_after_create(backend: StateBackend, path: str, data: bytes) -> None:
    """Let a process create an object and be killed at once; return when it is dead."""
    writer = multiprocessing.get_context("spawn").Process(
        target=_create_and_die, args=(backend, path, data)
    )
    writer.start()
    writer.join(PATIENCE_S)
    assert writer.exitcode == -signal.SIGKILL, f"the writer ended with {writer.exitcode}"
    writer.close()


def _write_and_wait(backend: StateBackend, path: str, reached: Connection) -> None:
    with backend.open_output(path) as output:
        output.write(b"x" * 1_000_000)
        output.flush()
        reached.send("written")
        time.sleep(PATIENCE_S)


def _create_and_die(backend: StateBackend, path: str, data: bytes) -> None:
    backend.create(path, data)
    os.kill(os.getpid(), signal.SIGKILL)
