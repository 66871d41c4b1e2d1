"""The contract of a state backend: a pytest suite for its author.

    class TestMyBackend(StateBackendContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path / "log")

The fixture returns an empty store. Processes race on it, so the module must be importable by its name. For a
store that other processes cannot see, set `racers = "threads"`, and set the two tests that kill a process to
None. The numbers (1), (2) and (3) below are the guarantees in the docstring of `StateBackend`.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Literal, Protocol

import pytest

from state_backends import StateBackend

Racers = Literal["processes", "threads"]
PATIENCE_S = 120.0
"""How long racers wait for each other, in seconds, before the test fails."""

LARGE = 4_000_000


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...
    def abort(self) -> None: ...


_line: _Barrier  # at which the racers of this race wait for each other


def together(
    racers: Racers, work: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]
) -> list[Any]:
    """Call all functions of `work` at the same time, each with its arguments; return the results.

    The first error of a racer is raised. Threads switch every microsecond: at the default of 5 ms, short
    calls would run one after the other.
    """
    count = len(work)
    pool: Executor
    if racers == "processes":
        context = multiprocessing.get_context("forkserver")
        pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_enter, initargs=(context.Barrier(count),)
        )
    else:
        pool = ThreadPoolExecutor(count, initializer=_enter, initargs=(threading.Barrier(count),))
    with pool, _switching_often():
        futures = [pool.submit(_race, function, arguments) for function, arguments in work]
        errors = [error for error in (future.exception() for future in futures) if error]
        for error in errors:
            if not isinstance(
                error, threading.BrokenBarrierError
            ):  # follows the error of another racer
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
    """Wait until all racers of this race call this function."""
    _line.wait(PATIENCE_S)


def _enter(barrier: _Barrier) -> None:
    global _line  # noqa: PLW0603 - a process gets the barrier only when it starts
    _line = barrier


def _race(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        line_up()
        return function(*arguments)
    except BaseException:
        _line.abort()  # otherwise the other racers would wait
        raise


def content(path: str, version: object, size: int = 10_000) -> bytes:
    """Return `size` bytes that differ for each path and version."""
    piece = sha256(f"{path} {version}".encode()).digest()
    return (piece * (size // len(piece) + 1))[:size]


def create_all(backend: StateBackend, way: str, paths: Sequence[str], name: str) -> list[str]:
    """Try to create each path at the same time as the other racers; return the paths created."""
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
    """Create large objects, in turn by one call and by several writes."""
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
    """Poll each object until it exists; fail if a part of it is visible."""
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
    """Replace the object with versions of different sizes."""
    for version in range(1, times + 1):
        backend.replace(path, content(path, version, 10_000 + version * 100))


def read_replaced(backend: StateBackend, path: str, times: int) -> None:
    """Read the object until its last version; fail if the bytes are not one version."""
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
    """Create an object, check that it is listed, and delete it, several times."""
    for number in range(times):
        path = f"{folder}/{number % 3}/{name}"
        backend.create(path, name.encode())
        assert path in backend.list(f"{folder}/{number % 3}"), f"{path} was created, not listed"
        assert backend.read(path) == name.encode()
        backend.delete([path])
        assert path not in backend.list(folder), f"{path} was deleted and is listed"


def come_and_go_until(backend: StateBackend, folder: str, name: str, end: str) -> None:
    """Create and delete objects until another racer creates the object `end`."""
    while end not in backend.list("ends"):
        come_and_go(backend, folder, name, 3)


def list_often(backend: StateBackend, stay: Sequence[str], times: int, end: str) -> None:
    """List all objects several times, then create `end`; fail if one of `stay` is not listed."""
    try:
        for _ in range(times):
            missing = set(stay).difference(backend.list())
            assert not missing, f"{len(missing)} objects were not listed, such as {min(missing)}"
    finally:
        backend.create(end, b"x")


def kill_inside_output(backend: StateBackend, path: str) -> None:
    """Kill a process while it writes an object; return when it is dead."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    with ours, theirs:
        writer = context.Process(target=_write_and_wait, args=(backend, path, theirs))
        writer.start()
        theirs.close()  # so that poll() returns if the writer fails
        assert ours.poll(PATIENCE_S), "the writer did not get as far as its first bytes"
        assert ours.recv() == "written"
        writer.kill()
        writer.join()
        writer.close()


def kill_after_create(backend: StateBackend, path: str, data: bytes) -> None:
    """Kill a process right after it has created an object; return when it is dead."""
    writer = multiprocessing.get_context("forkserver").Process(
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


HOSTILE = ("", "/", "/a", "..", "../a", "a/../b", "a/..", ".", "./a", "a/./b", "a//b", "a/", ".a",
           "a/.b", "a\\b", "..\\a", "a\0b")  # fmt: skip


class StateBackendContract:
    """The suite; derive it and override the fixture `backend`."""

    racers: ClassVar[Racers] = "processes"
    """Who races: "processes", or "threads" for a store of one process."""

    rounds: ClassVar[int] = 200
    """The number of paths that the racers try to create."""

    @pytest.fixture
    def backend(self) -> StateBackend:
        """Return the store, empty."""
        raise NotImplementedError("override the fixture `backend`: it returns an empty store")

    # Atomic visibility

    def test_object_is_whole_as_soon_as_it_is_visible(self, backend: StateBackend) -> None:
        """(1) Racers poll while large objects are created: they see nothing, or the whole object."""
        paths = [f"large/{number}" for number in range(20)]
        work = [
            (write_large, (backend, paths)),
            *[(poll_large, (backend, paths))] * 2,
        ]
        together(self.racers, work)

    def test_replaced_object_is_never_torn(self, backend: StateBackend) -> None:
        """(1) Racers read while an object is replaced: they read one whole version."""
        backend.replace("hint", content("hint", 0))
        work = [
            (replace_often, (backend, "hint", self.rounds)),
            *[(read_replaced, (backend, "hint", self.rounds))] * 2,
        ]
        together(self.racers, work)

    def test_output_is_invisible_until_left(self, backend: StateBackend) -> None:
        """(1) The object is visible only after the block of `open_output`."""
        with backend.open_output("segments/1/a") as output:
            output.write(b"x" * 100_000)
            output.flush()
            assert backend.list() == [], "an unfinished object is listed"
            with pytest.raises(FileNotFoundError):
                backend.read("segments/1/a")
            with pytest.raises(FileNotFoundError):
                backend.size("segments/1/a")
            output.write(b"y")
        assert backend.read("segments/1/a") == b"x" * 100_000 + b"y"
        assert backend.list() == ["segments/1/a"]

    @pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, GeneratorExit])
    def test_output_is_discarded_on_an_exception(
        self, backend: StateBackend, kind: type[BaseException]
    ) -> None:
        """(1) An exception in the block of `open_output` creates no object."""

        def fail_inside() -> None:
            with backend.open_output("a/b") as output:
                output.write(b"x" * 100_000)
                raise kind

        with pytest.raises(kind):
            fail_inside()
        assert backend.list() == [], "a discarded object is listed"
        assert backend.sweep_unfinished(0) == 0, "a discarded object left something to sweep"
        backend.create("a/b", b"the name is free")

    def test_output_closed_by_its_writer_is_kept(self, backend: StateBackend) -> None:
        """(1) A writer may close the file in the block."""
        with backend.open_output("a") as output:
            output.write(b"x")
            output.close()
        assert backend.read("a") == b"x"

    def test_killed_writer_leaves_nothing_visible(self, backend: StateBackend) -> None:
        """(1) A process is killed in the block of `open_output`: there is no object, and the path is free."""
        kill_inside_output(backend, "segments/1/a")
        assert backend.list() == [], "the object of a killed writer is listed"
        with pytest.raises(FileNotFoundError):
            backend.read("segments/1/a")
        backend.create("segments/1/a", b"second try")
        backend.sweep_unfinished(0)
        assert backend.sweep_unfinished(0) == 0, "a sweep left something for the next one"
        assert backend.read("segments/1/a") == b"second try", "a sweep took a finished object"

    # Mutual exclusion

    @pytest.mark.parametrize("way", ["create", "open_output"])
    def test_exactly_one_of_many_creators_wins(self, backend: StateBackend, way: str) -> None:
        """(2) Racers create the same paths: each path has one creator and the creator's content."""
        paths = [f"runs/{number:06}" for number in range(self.rounds)]
        work = [(create_all, (backend, way, paths, name)) for name in "abcd"]
        won = dict(zip("abcd", together(self.racers, work), strict=True))
        winners = Counter(path for mine in won.values() for path in mine)
        wrong = {path: winners[path] for path in paths if winners[path] != 1}
        assert not wrong, f"{len(wrong)} of {len(paths)} paths have not one winner: {wrong}"
        for name, mine in won.items():
            for path in mine:
                assert backend.read(path) == content(path, name), f"{path}: not {name}'s"
        assert backend.list("runs/") == paths

    def test_create_refuses_existing_object(self, backend: StateBackend) -> None:
        """(2) A second create raises `FileExistsError` and changes nothing, also with the same bytes."""
        backend.create("a/b", b"first")
        for data in (b"second", b"first"):
            with pytest.raises(FileExistsError):
                backend.create("a/b", data)
        with pytest.raises(FileExistsError), backend.open_output("a/b") as output:
            output.write(b"third")
        assert backend.read("a/b") == b"first"

    def test_output_refuses_existing_object_at_the_end(self, backend: StateBackend) -> None:
        """(2) An object that is created in the block of `open_output` wins."""

        def write_too_late() -> None:
            with backend.open_output("a") as output:
                output.write(b"late")
                backend.create("a", b"early")

        with pytest.raises(FileExistsError):
            write_too_late()
        assert backend.read("a") == b"early"
        assert backend.sweep_unfinished(0) == 0, "a refused output left something to sweep"

    # Durable and listed

    def test_acknowledged_object_survives_a_kill(self, backend: StateBackend) -> None:
        """(3) A process creates an object and is killed: the object is there, and is listed."""
        kill_after_create(backend, "a/b/c", b"acknowledged")
        assert backend.list() == ["a/b/c"]
        assert backend.read("a/b/c") == b"acknowledged"

    def test_list_is_sorted_and_recursive(self, backend: StateBackend) -> None:
        """(3) `list` returns the whole paths of all objects below a folder, in order."""
        paths = ["m/10", "m/2", "m/a/b/c", "m-2/x", "m0", "z", "m/a.json", "m/a/b/d"]
        for path in paths:
            backend.create(path, b"x")
        below = ["m/10", "m/2", "m/a.json", "m/a/b/c", "m/a/b/d"]
        assert backend.list() == sorted(paths)
        assert backend.list("m/") == below, "a prefix is a folder, not the start of a name"
        assert backend.list("m") == below
        assert [backend.folders(), backend.folders("m/")] == [["m", "m-2"], ["a"]]
        assert backend.list("m/a/b") == ["m/a/b/c", "m/a/b/d"]
        assert backend.list("z/") == [], "an object is not a folder"

    def test_list_of_a_missing_folder_is_empty(self, backend: StateBackend) -> None:
        """(3) An empty store, and a folder without objects, have an empty list."""
        assert backend.list() == backend.folders() == []
        assert backend.list("manifests/") == backend.list("segments/7/x") == []

    def test_copy_is_an_object_of_its_own(self, backend: StateBackend) -> None:
        """(1, 2) The copy stays when the original is deleted, and replaces no object."""
        backend.create("a/first", b"content")
        backend.create("b/third", b"other")
        backend.copy("a/first", "b/c/second")
        with pytest.raises(FileExistsError):
            backend.copy("a/first", "b/third")
        backend.delete(["a/first"])
        assert [backend.read(path) for path in backend.list()] == [b"content", b"other"]
        with pytest.raises(FileNotFoundError):
            backend.copy("b", "d")

    def test_list_loses_nothing_while_others_come_and_go(self, backend: StateBackend) -> None:
        """(3) Racers create and delete objects beside others: each list has all the others."""
        # In two of the three folders of `come_and_go`; the third folder is removed and made again.
        stay = sorted(f"busy/{n % 2}/{n:04}-{'x' * 120}" for n in range(self.rounds * 2))
        for path in stay:
            backend.create(path, b"x")
        end = "ends/listing"
        work = [(come_and_go_until, (backend, "busy", name, end)) for name in "abc"]
        lister = (list_often, (backend, stay, self.rounds, end))
        together(self.racers, [*work, lister])
        assert backend.list() == [*stay, end]

    def test_create_survives_others_emptying_its_folder(self, backend: StateBackend) -> None:
        """(3) Racers create objects in a folder that other racers empty: each is listed."""
        work = [(come_and_go, (backend, "deep/er", name, self.rounds)) for name in "abcd"]
        together(self.racers, work)
        assert backend.list() == []

    # Reading, replacing, deleting

    def test_content_comes_back_as_it_was(self, backend: StateBackend) -> None:
        """`read`, `size` and `open_input` return the same bytes that were written."""
        data = bytes(range(256)) * 8_192
        backend.create("segments/1/a b%20ü.arrow", data)
        assert backend.list() == ["segments/1/a b%20ü.arrow"]
        (path,) = backend.list()
        assert backend.read(path) == data
        assert backend.size(path) == len(data)
        with closing(backend.open_input(path)) as file:
            assert file.seekable()
            assert file.read(3) == data[:3]
            assert file.seek(-5, os.SEEK_END) == len(data) - 5
            assert file.read() == data[-5:]

    def test_missing_object_is_file_not_found(self, backend: StateBackend) -> None:
        """`read`, `size` and `open_input` raise `FileNotFoundError`, also for a folder."""
        backend.create("folder/object", b"x")
        for path in ("missing", "folder", "folder/missing", "folder/object/missing"):
            for method in (backend.read, backend.size, backend.open_input):
                with pytest.raises(FileNotFoundError):
                    method(path)

    def test_replace_writes_and_overwrites(self, backend: StateBackend) -> None:
        """`read` returns the content of the last `replace`."""
        for data in (b"a longer one", b"short"):
            backend.replace("hints/flusher.json", data)
            assert backend.read("hints/flusher.json") == data
        assert backend.list() == ["hints/flusher.json"]

    def test_delete_can_be_repeated(self, backend: StateBackend) -> None:
        """`delete` ignores missing objects, and the deleted paths can be created again."""
        for path in ("a/1", "a/2", "b/1"):
            backend.create(path, b"x")
        for _ in range(2):
            backend.delete(iter(["a/1", "a/missing", "b/1", "missing/too", "a"]))
            assert backend.list() == ["a/2"]
            with pytest.raises(FileNotFoundError):
                backend.read("a/1")
        backend.delete([])
        backend.create("a/1", b"again")
        assert backend.list() == ["a/1", "a/2"]

    # Refusals and pickling

    @pytest.mark.parametrize("path", HOSTILE)
    def test_hostile_path_is_refused(self, backend: StateBackend, path: str) -> None:
        """All methods refuse a path that leaves the store or is ambiguous, before any I/O."""
        backend.create("keep", b"x")
        for method in (backend.read, backend.size, backend.open_input):
            with pytest.raises(ValueError, match="path"):
                method(path)
        for write in (backend.create, backend.replace):
            with pytest.raises(ValueError, match="path"):
                write(path, b"x")
        with pytest.raises(ValueError, match="path"), backend.open_output(path):
            pytest.fail("open_output gave a file")
        with pytest.raises(ValueError, match="path"):
            backend.delete(["keep", path])
        if path not in {"", "a/"}:
            with pytest.raises(ValueError, match="path"):
                backend.list(path)
        assert backend.list() == ["keep"], "something was touched before the path was refused"

    def test_empty_object_is_refused(self, backend: StateBackend) -> None:
        for write in (backend.create, backend.replace):
            with pytest.raises(ValueError, match="empty"):
                write("a", b"")
        with pytest.raises(ValueError, match="empty"), backend.open_output("a"):
            pass
        assert backend.list() == []

    def test_pickled_backend_is_the_same_store(self, backend: StateBackend) -> None:
        backend.create("a", b"x")
        copy = pickle.loads(pickle.dumps(backend))
        assert copy == backend
        assert hash(copy) == hash(backend)
        assert copy.url == backend.url
        copy.create("b", b"y")
        assert backend.list() == copy.list() == ["a", "b"]

    def test_probe_accepts_the_store_and_leaves_nothing(self, backend: StateBackend) -> None:
        backend.probe()
        assert backend.list() == []
        backend.create("a", b"x")
        backend.probe()
        assert backend.list() == ["a"]
        assert backend.process_local == (self.racers == "threads")
