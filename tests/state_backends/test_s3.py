"""S3Backend keeps the contract over moto's server; lost answers, parts and errors of S3."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from state_backends import S3Backend, StateBackendError
from state_backends.object_store import PART
from tests.state_backends.contract import StateBackendContract
from tests.support.s3 import S3

ROOT = Path(__file__).parents[2]
LARGE = b"0123456789abcdef" * (PART // 16) + b"and a second part" * 1_000


class TestS3Backend(StateBackendContract):
    rounds = 10

    @pytest.fixture
    def backend(self, s3: S3) -> S3Backend:
        return s3.backend()


def uploads(backend: S3Backend) -> list[dict[str, str]]:
    """Return the uploads in parts that are not completed."""
    return backend._call("list_multipart_uploads").get("Uploads", [])  # type: ignore[no-any-return]


def abort_uploads(backend: S3Backend) -> None:
    """Abort all uploads in parts, as a lifecycle rule does."""
    for upload in uploads(backend):
        names = {name: upload[name] for name in ("Key", "UploadId")}
        backend._call("abort_multipart_upload", **names)


# --- lost answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_lost_answer_to_a_create_is_a_success(s3: S3, lost: int) -> None:
    """The client repeats the request, and S3 refuses it because of the first object, whose nonce is ours."""
    backend = s3.backend(f"lossy-{lost}")
    s3.counts()
    backend.create("a", b"content")
    assert s3.counts()["PUT"] > lost, "no answer was lost"
    assert backend.read("a") == b"content"
    with pytest.raises(FileExistsError):
        backend.create("a", b"content")


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_lost_answer_to_an_upload_is_a_success(s3: S3, lost: int) -> None:
    """The repeated completion finds no upload, or an existing object."""
    backend = s3.backend(f"lossy-{lost}")
    with backend.open_output("a") as output:
        output.write(LARGE)
    assert backend.read("a") == LARGE
    assert uploads(backend) == []
    with pytest.raises(FileExistsError):
        backend.create("a", LARGE)


def test_another_creators_object_is_not_taken_for_ours(s3: S3) -> None:
    """The answer to our create is lost, and another creator's object was there before."""
    backend = s3.backend("lossy-1")
    S3Backend(backend.url, s3.options).create("a", b"same")
    s3.ask("again")
    s3.counts()
    with pytest.raises(FileExistsError):
        backend.create("a", b"same")
    assert s3.counts()["PUT"] > 1, "no answer was lost"


def test_busy_store_is_retried(s3: S3) -> None:
    """S3 answers the first requests of each kind with SlowDown."""
    backend = s3.backend("busy-1")
    backend.create("a", b"x")
    assert backend.read("a") == b"x"
    assert backend.size("a") == 1
    assert backend.list() == ["a"]
    backend.delete(["a"])
    assert backend.list() == []


@pytest.mark.parametrize("data", [b"content", LARGE], ids=["small", "large"])
def test_create_after_conflict_is_retried(s3: S3, data: bytes) -> None:
    """After 409 the other create may still fail, so the request is repeated; 412 means that it succeeded."""
    backend = s3.backend("conflict-2")
    with backend.open_output("a") as output:
        output.write(data)
    assert backend.read("a") == data
    with pytest.raises(FileExistsError):
        backend.create("a", data)


def test_expired_credentials_are_reported(s3: S3) -> None:
    """The error has a remedy, and contains no secret."""
    backend = s3.backend("expiring-3")
    backend.create("a", b"x")
    backend.create("b", b"x")
    with pytest.raises(StateBackendError, match="ExpiredToken: give valid credentials") as caught:
        backend.create("c", b"x")
    assert "Geheim" not in str(caught.value)


def test_store_that_never_answers_raises_connection_error() -> None:
    """The number of retries is bounded, and the flusher treats the error as an outage."""
    nobody = {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "Geheim"}
    backend = S3Backend("s3://bucket/log", nobody)
    acts: list[Callable[[], object]] = [
        lambda: backend.create("a", b"x"),
        lambda: backend.read("a"),
        backend.list,
        lambda: backend.delete(["a"]),
    ]
    started = time.monotonic()
    with ThreadPoolExecutor(len(acts)) as pool:  # since each call waits between its retries
        errors = [future.exception(60) for future in [pool.submit(act) for act in acts]]
    assert time.monotonic() - started < 60
    for error in errors:
        assert isinstance(error, ConnectionError)
        assert "does not answer" in str(error)
        assert "Geheim" not in str(error)


# --- stores that do not keep the promises ---------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("careless", "a second create"), ("careful", "a second upload")],
)
def test_probe_refuses_a_store_that_ignores_the_condition(
    s3: S3, behaviour: str, reason: str
) -> None:
    """Some stores ignore the condition of all creates, some only when an upload is completed."""
    backend = s3.backend(behaviour)
    with pytest.raises(StateBackendError, match=rf"{reason}.*If-None-Match.*Choose a store"):
        backend.probe()
    assert backend.list() == []
    assert uploads(backend) == []


def test_missing_bucket_is_not_an_empty_store(s3: S3) -> None:
    """s3fs reports it as a missing object; an empty log would be flushed as if nothing were pending."""
    backend = S3Backend("s3://no-such-bucket/log", s3.options)
    acts: list[Callable[[], object]] = [
        *(backend.list, lambda: backend.read("a"), lambda: backend.size("a")),
        *(lambda: backend.open_input("a"), lambda: backend.create("a", b"x")),
        *(lambda: backend.replace("a", b"x"), lambda: backend.delete(["a"]), backend.probe),
    ]
    for act in acts:
        with pytest.raises(StateBackendError, match="there is no bucket"):
            act()


def test_denied_access_is_reported_with_a_remedy(s3: S3) -> None:
    backend = s3.backend("denied")
    for act in (backend.list, lambda: backend.read("a"), backend.probe):
        with pytest.raises(StateBackendError, match=r"AccessDenied.*s3:ListBucket") as caught:
            act()
        assert "Geheim" not in str(caught.value)


def test_missing_credentials_are_reported_with_a_remedy(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    backend = S3Backend(s3.bucket(), {"endpoint_url": s3.endpoint})
    with pytest.raises(StateBackendError, match=r"no credentials.*AWS_ACCESS_KEY_ID"):
        backend.list()


@pytest.mark.parametrize("wrong", [{"enpoint_url": "x"}, {"endpoint_url": "no url"}])
def test_error_names_storage_options_that_are_wrong(s3: S3, wrong: dict[str, object]) -> None:
    """The error has the names of the options, but not their values."""
    backend = S3Backend(s3.bucket(), {"key": "k", "secret": "Geheim", **wrong})
    with pytest.raises(StateBackendError, match=f"storage options.*{next(iter(wrong))}") as caught:
        backend.list()
    assert "Geheim" not in str(caught.value)


def test_object_that_cannot_be_deleted_is_an_error(s3: S3) -> None:
    """S3 answers 200 to a bulk deletion that failed, and s3fs ignores the errors in the answer."""
    with pytest.raises(StateBackendError, match=r"could not be deleted.*AccessDenied"):
        s3.backend("keeping").delete(["a"])


# --- names, parts and processes -------------------------------------------------------------------


def test_asterisk_in_a_path_is_not_a_pattern(s3: S3) -> None:
    backend = s3.backend()
    for path in ("a*", "ab", "a[b]", "what?", "100%25"):
        backend.create(path, b"x")
    backend.delete(["a*", "a[b]", "what?"])
    assert backend.list() == ["100%25", "ab"]


def test_thousands_of_objects_are_listed_and_deleted(s3: S3) -> None:
    """S3 lists names by pages, and deletes up to 1,000 objects in a request."""
    backend = s3.backend("paging-3")
    paths = [f"flushed/{number:020}" for number in range(1_001)]
    present = [*paths[:6], paths[-1]]
    for path in present:
        backend.create(path, b"x")
    s3.counts()
    assert backend.list("flushed") == present
    assert s3.counts()["LIST"] == 3
    backend.delete(paths)
    assert s3.counts()["DELETE"] == 2
    assert backend.list() == []


def test_store_lists_only_objects_below_its_prefix(s3: S3) -> None:
    """A store ignores objects beside its prefix, and folders that Hadoop or a console has made."""
    bucket = s3.bucket()
    one, other, whole = (S3Backend(f"{bucket}{at}", s3.options) for at in ("/log", "/log-2", ""))
    one.create("a", b"1")
    other.create("a", b"2")
    for remaining in ("log/folder/", "log/.hidden", "log/a//b"):
        one._call("put_object", Key=remaining)
    assert one.list() == ["a"]
    assert one.list("folder") == []
    assert whole.list() == ["log-2/a", "log/a"]


def test_large_object_is_read_in_pieces(s3: S3) -> None:
    backend = s3.backend()
    with backend.open_output("a") as output:
        for start in range(0, len(LARGE), 1_000_000):
            assert output.write(LARGE[start : start + 1_000_000]) > 0
    assert backend.size("a") == len(LARGE)
    with backend.open_input("a") as file:
        assert file.read() == LARGE
        file.seek(PART - 2)
        assert file.read(4) == LARGE[PART - 2 : PART + 2]
        assert file.tell() == PART + 2


def test_object_deleted_while_it_is_read_is_gone(s3: S3) -> None:
    """The flusher handles the `FileNotFoundError` as a missing segment."""
    backend = s3.backend()
    backend.create("a", LARGE * 3)
    with backend.open_input("a") as file:
        file.read(1)
        backend.delete(["a"])
        file.seek(len(LARGE) * 3 - 10)
        with pytest.raises(FileNotFoundError):
            file.read()


def test_discarded_upload_leaves_no_part(s3: S3) -> None:
    """Parts of an unfinished upload are billed."""
    backend = s3.backend()

    def fail() -> None:
        with backend.open_output("a") as output:
            output.write(LARGE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert uploads(backend) == []
    assert backend.list() == []


def test_writer_whose_upload_was_aborted_fails(s3: S3) -> None:
    """An early lifecycle rule costs a writer an error, not a missing object."""
    backend = s3.backend()

    def write_slowly() -> None:
        with backend.open_output("a") as output:
            output.write(LARGE)
            abort_uploads(backend)

    with pytest.raises(StateBackendError, match="lifecycle"):
        write_slowly()
    assert backend.list() == []


def test_writer_that_continues_after_an_error_makes_no_object(s3: S3) -> None:
    """A writer ignores an error of `write`, so the object would lack a part."""
    backend = s3.backend()

    def write_on() -> None:
        with backend.open_output("a") as output:
            output.write(LARGE)
            abort_uploads(backend)
            with pytest.raises(StateBackendError, match="lifecycle"):
                output.write(LARGE)
            output.write(b"more")

    with pytest.raises(OSError, match="try again later"):
        write_on()
    assert backend.list() == []


def test_threads_share_a_client(s3: S3) -> None:
    """A client takes 0.1 seconds to make; other keys need another client."""
    backend = s3.backend()
    backend.create("a", b"x")
    assert S3Backend(backend.url, s3.options)._fs is backend._fs
    assert S3Backend(backend.url, {**s3.options, "key": "other"})._fs is not backend._fs
    result: list[bytes] = []
    threads = [threading.Thread(target=lambda: result.append(backend.read("a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [b"x"] * 4


def test_forked_process_has_its_own_client(s3: S3) -> None:
    """Spark forks its Python workers; the client of the parent would hang or fail in them."""
    backend = s3.backend()
    backend.create("a", b"x")
    program = f"""
import os
from state_backends import S3Backend
backend = S3Backend({backend.url!r}, {s3.options!r})
assert backend.read("a") == b"x"
child = os.fork()
if child == 0:
    os._exit(0 if backend.read("a") == b"x" else 1)
assert os.waitpid(child, 0)[1] == 0
assert backend.read("a") == b"x"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=ROOT)


def test_secrets_are_pickled_and_not_printed(s3: S3) -> None:
    """A pickled store has its keys, but `repr` does not show them."""
    backend = s3.backend()
    copy = pickle.loads(pickle.dumps(backend))
    assert copy._options == backend._options
    for text in (repr(backend), repr(backend._options), str(copy)):
        assert "Geheim" not in text
    assert "secret" in repr(backend._options)
