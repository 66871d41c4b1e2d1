"""The contract of a state backend, as a pytest suite for its author.

    class TestMyBackend(StateBackendContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path / "log")

The fixture gives an empty store. Processes race on it, so the class has to be importable by its
module's name; set `racers = "threads"` for a store that other processes cannot see, and
set the two tests in which a process is killed to None. (1), (2) and
(3) in the texts below are the guarantees in the docstring of `StateBackend`.
"""

import os
import pickle
from collections import Counter
from contextlib import closing
from typing import ClassVar

import pytest

from state_backends import StateBackend
from wal_sink.testing.contracts import racing
from wal_sink.testing.contracts.racing import Racers

HOSTILE = ("", "/", "/a", "..", "../a", "a/../b", "a/..", ".", "./a", "a/./b", "a//b", "a/", ".a",
           "a/.b", "a\\b", "..\\a", "a\0b")  # fmt: skip


class StateBackendContract:
    """Subclass it with a fixture `backend`; pytest runs the rest."""

    racers: ClassVar[Racers] = "processes"
    """Who races on the store: "processes", or "threads" when it is local to one process."""

    rounds: ClassVar[int] = 200
    """How many paths the racers race for. A broken create is met in a good part of them."""

    @pytest.fixture
    def backend(self) -> StateBackend:
        """Give the store under test, empty."""
        raise NotImplementedError("override the fixture `backend`: it returns an empty store")

    # Atomic visibility

    def test_object_is_whole_as_soon_as_it_is_visible(self, backend: StateBackend) -> None:
        """(1) Who polls while large objects are created sees nothing or all of each."""
        paths = [f"large/{number}" for number in range(20)]
        work = [
            (racing.write_large, (backend, paths)),
            *[(racing.poll_large, (backend, paths))] * 2,
        ]
        racing.together(self.racers, work)

    def test_replaced_object_is_never_torn(self, backend: StateBackend) -> None:
        """(1) Who reads while an object is replaced gets one of its versions, whole."""
        backend.replace("hint", racing.content("hint", 0))
        work = [
            (racing.replace_often, (backend, "hint", self.rounds)),
            *[(racing.read_replaced, (backend, "hint", self.rounds))] * 2,
        ]
        racing.together(self.racers, work)

    def test_output_is_invisible_until_left(self, backend: StateBackend) -> None:
        """(1) Inside `open_output` there is no object; after it there is a whole one."""
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
        """(1) An exception inside `open_output` passes through and leaves nothing behind."""

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
        """(1) A writer that closes the file it was given has not lost its object."""
        with backend.open_output("a") as output:
            output.write(b"x")
            output.close()
        assert backend.read("a") == b"x"

    def test_killed_writer_leaves_nothing_visible(self, backend: StateBackend) -> None:
        """(1) A process killed inside `open_output` leaves no object, and the name is free."""
        racing.kill_inside_output(backend, "segments/1/a")
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
        """(2) Creators that race for the same paths: one wins each, and the content is its own."""
        paths = [f"runs/{number:06}" for number in range(self.rounds)]
        work = [(racing.create_all, (backend, way, paths, name)) for name in "abcd"]
        won = dict(zip("abcd", racing.together(self.racers, work), strict=True))
        winners = Counter(path for mine in won.values() for path in mine)
        wrong = {path: winners[path] for path in paths if winners[path] != 1}
        assert not wrong, f"{len(wrong)} of {len(paths)} paths have not one winner: {wrong}"
        for name, mine in won.items():
            for path in mine:
                assert backend.read(path) == racing.content(path, name), f"{path}: not {name}'s"
        assert backend.list("runs/") == paths

    def test_create_refuses_what_exists(self, backend: StateBackend) -> None:
        """(2) A second create raises `FileExistsError` and changes nothing, be it of the same bytes."""
        backend.create("a/b", b"first")
        for data in (b"second", b"first"):
            with pytest.raises(FileExistsError):
                backend.create("a/b", data)
        with pytest.raises(FileExistsError), backend.open_output("a/b") as output:
            output.write(b"third")
        assert backend.read("a/b") == b"first"

    def test_what_is_missing_is_created(self, backend: StateBackend) -> None:
        """(2) What exists is left as it is, and does not keep the rest from being created."""
        backend.create("flushed/2", b"was there")
        objects = {f"flushed/{number}": b"new" for number in (1, 2, 3)}
        for _ in range(2):
            backend.create_missing(objects)
            found = [backend.read(path) for path in objects]
            assert found == [b"new", b"was there", b"new"]
        assert backend.list() == [*objects]
        assert backend.sweep_unfinished(0) == 0, "something is left to sweep"
        with pytest.raises(ValueError, match="empty"):
            backend.create_missing({"flushed/4": b""})

    def test_output_refuses_what_exists_at_the_end(self, backend: StateBackend) -> None:
        """(2) An object created while an output is open wins over it."""

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
        """(3) What a process created before it was killed is there, and listed."""
        racing.kill_after_create(backend, "a/b/c", b"acknowledged")
        assert backend.list() == ["a/b/c"]
        assert backend.read("a/b/c") == b"acknowledged"

    def test_list_is_sorted_and_recursive(self, backend: StateBackend) -> None:
        """(3) Every object under the folder is listed, in order, with its whole path."""
        paths = ["m/10", "m/2", "m/a/b/c", "m-2/x", "m0", "z", "m/a.json", "m/a/b/d"]
        for path in paths:
            backend.create(path, b"x")
        below = ["m/10", "m/2", "m/a.json", "m/a/b/c", "m/a/b/d"]
        assert backend.list() == sorted(paths)
        assert backend.list("m/") == below, "a prefix is a folder, not the start of a name"
        assert backend.list("m") == below
        assert [backend.folders(), backend.folders("m/")] == [["m", "m-2"], ["a"]]
        assert backend.list("m/a/b") == ["m/a/b/c", "m/a/b/d"]
        assert backend.list("z/") == [], "an object is no folder"

    def test_list_of_a_missing_folder_is_empty(self, backend: StateBackend) -> None:
        """(3) What was never written lists as nothing, the whole store included."""
        assert backend.list() == backend.folders() == []
        assert backend.list("manifests/") == backend.list("segments/7/x") == []

    def test_a_fresh_listing_has_what_a_listing_has(self, backend: StateBackend) -> None:
        """(3) And leaves nothing behind: no object, and nothing for a sweep."""
        assert backend.list_fresh("m/") == []
        for path in ("m/1", "m/a/2", "z"):
            backend.create(path, b"x")
        assert backend.list_fresh("m/") == ["m/1", "m/a/2"]
        assert backend.list_fresh() == backend.list() == ["m/1", "m/a/2", "z"]
        assert backend.sweep_unfinished(0) == 0

    def test_a_copy_is_an_object_of_its_own(self, backend: StateBackend) -> None:
        """(1, 2) It stays when the first one goes, and replaces nothing."""
        backend.create_missing({"a/first": b"content", "b/third": b"other"})
        backend.copy("a/first", "b/c/second")
        with pytest.raises(FileExistsError):
            backend.copy("a/first", "b/third")
        backend.delete(["a/first"])
        assert [backend.read(path) for path in backend.list()] == [b"content", b"other"]
        with pytest.raises(FileNotFoundError):
            backend.copy("b", "d")

    def test_list_loses_nothing_while_others_come_and_go(self, backend: StateBackend) -> None:
        """(3) Objects that stay are in every listing while others appear and vanish beside them."""
        # In two of the three folders of `come_and_go`; the third one comes and goes itself.
        stay = sorted(f"busy/{n % 2}/{n:04}-{'x' * 120}" for n in range(self.rounds * 2))
        for path in stay:
            backend.create(path, b"x")
        end = "ends/listing"
        work = [(racing.come_and_go_until, (backend, "busy", name, end)) for name in "abc"]
        lister = (racing.list_often, (backend, stay, self.rounds, end))
        racing.together(self.racers, [*work, lister])
        assert backend.list() == [*stay, end]

    def test_create_survives_others_emptying_its_folder(self, backend: StateBackend) -> None:
        """(3) Creating in a folder that deletions keep emptying works, and is listed at once."""
        work = [(racing.come_and_go, (backend, "deep/er", name, self.rounds)) for name in "abcd"]
        racing.together(self.racers, work)
        assert backend.list() == []

    # Reading, replacing, deleting

    def test_content_comes_back_as_it_was(self, backend: StateBackend) -> None:
        """Every byte is kept, and `size` and `open_input` agree with `read`."""
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
        """`read`, `size` and `open_input` raise `FileNotFoundError`, for a folder's name too."""
        backend.create("folder/object", b"x")
        for path in ("missing", "folder", "folder/missing", "folder/object/missing"):
            for method in (backend.read, backend.size, backend.open_input):
                with pytest.raises(FileNotFoundError):
                    method(path)

    def test_replace_writes_and_overwrites(self, backend: StateBackend) -> None:
        """The last `replace` is read back, shorter than the one before or not."""
        for data in (b"a longer one", b"short"):
            backend.replace("hints/flusher.json", data)
            assert backend.read("hints/flusher.json") == data
        assert backend.list() == ["hints/flusher.json"]

    def test_delete_can_be_repeated(self, backend: StateBackend) -> None:
        """Deleting takes what is there, passes over what is not, and frees the names."""
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

    # What is refused, and what travels

    @pytest.mark.parametrize("path", HOSTILE)
    def test_hostile_path_is_refused(self, backend: StateBackend, path: str) -> None:
        """No method takes a path out of the store or one with two readings; nothing is touched."""
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
        """Some stores create an empty object without the condition, so there are none."""
        for write in (backend.create, backend.replace):
            with pytest.raises(ValueError, match="empty"):
                write("a", b"")
        with pytest.raises(ValueError, match="empty"), backend.open_output("a"):
            pass
        assert backend.list() == []

    def test_pickled_backend_is_the_same_store(self, backend: StateBackend) -> None:
        """A backend travels to executors: its copy equals it and sees the same objects."""
        backend.create("a", b"x")
        copy = pickle.loads(pickle.dumps(backend))  # noqa: S301 - our own bytes
        assert copy == backend
        assert hash(copy) == hash(backend)
        assert copy.url == backend.url
        copy.create("b", b"y")
        assert backend.list() == copy.list() == ["a", "b"]

    def test_probe_accepts_the_store_and_leaves_nothing(self, backend: StateBackend) -> None:
        """A store that keeps its promises passes its own probe, on an empty store and a full one."""
        backend.probe()
        assert backend.list() == []
        backend.create("a", b"x")
        backend.probe()
        assert backend.list() == ["a"]
        assert backend.process_local == (self.racers == "threads")
