"""Google Cloud Storage and Azure keep the contract of a store, over emulators with real races."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator

import pytest

from state_backends import (
    AzureBackend,
    StateBackend,
    StateBackendError,
    open_backend,
)
from state_backends.object_store import PART
from tests.deploy.stores import Store, azurite, fake_gcs
from tests.state_backends.contract import StateBackendContract
from tests.support.deploy_table import Counted, Row

LARGE = b"0123456789abcdef" * (PART // 16) + b"and a second part" * 1_000
pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Sending a large body"),  # a warning of aiohttp about gcsfs
]


@pytest.fixture(scope="session", params=[fake_gcs, azurite], ids=["gcs", "azure"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Run each emulator, with a proxy that can lose answers."""
    with request.param() as store:
        yield store


@pytest.fixture
def backend(store: Store) -> StateBackend:
    return open_backend(f"{store.bucket()}/the/log", store.options)


class TestEmulator(StateBackendContract):
    """Processes race on a bucket."""

    rounds = 25

    @pytest.fixture
    def backend(self, store: Store) -> StateBackend:
        return open_backend(f"{store.bucket()}/the/log", store.options)


@pytest.mark.parametrize("data", [b"content", LARGE], ids=["small", "large"])
def test_lost_answer_to_a_create_is_a_success(
    store: Store, backend: StateBackend, data: bytes
) -> None:
    """The client repeats the request, and the store refuses it, since the object exists."""
    with store.front.losing(1), backend.open_output("a") as output:
        output.write(data)
    assert backend.read("a") == data
    with pytest.raises(FileExistsError):
        backend.create("a", data[::-1])
    assert backend.list() == ["a"]


@pytest.mark.parametrize("other", [b"other", LARGE], ids=["small", "large"])
def test_create_while_an_output_is_open_keeps_one_object(
    backend: StateBackend, other: bytes
) -> None:
    """The store checks the condition at the end of an upload.

    Azurite reserves a name with uploaded blocks.
    """
    won = []
    with contextlib.suppress(FileExistsError):
        with backend.open_output("a") as output:
            output.write(LARGE + b"late")
            with contextlib.suppress(FileExistsError):
                backend.create("a", other)
                won.append(other)
        won.append(LARGE + b"late")
    assert won == [backend.read("a")]
    assert backend.list() == ["a"]


def test_exactly_one_of_many_large_outputs_wins(
    backend: StateBackend, counted: Counted, store: Store
) -> None:
    """Processes race for objects that are sent in parts."""
    paths = [f"runs/{number}" for number in range(4)]
    context = multiprocessing.get_context("forkserver")
    with context.Pool(3) as pool:
        work = [(backend, paths, name) for name in "abc"]
        won = pool.starmap(write_all_large, work)
    winners = sorted(path for mine in won for path in mine)
    for name, mine in zip("abc", won, strict=True):
        for path in mine:
            assert backend.read(path) == LARGE + name.encode()
    counted(Row(store.name, store.version, "races of 3 for objects in parts", 4, len(winners)))
    assert winners == paths


def test_killed_writer_of_a_large_output_leaves_no_object(backend: StateBackend) -> None:
    """Azurite reserves the name until it deletes the blocks.

    So a second writer gets an error, and no row is lost.
    """
    context = multiprocessing.get_context("forkserver")
    reached = context.Event()
    writer = context.Process(target=write_and_hang, args=(backend, reached))
    writer.start()
    assert reached.wait(120)
    writer.kill()
    writer.join()
    assert backend.list() == []
    if isinstance(backend, AzureBackend):
        with pytest.raises(FileExistsError):
            backend.create("a", b"second try")
        assert backend.list() == []
    else:
        backend.create("a", b"second try")
        assert backend.read("a") == b"second try"


def test_missing_bucket_is_not_an_empty_store(store: Store) -> None:
    """The pending epochs of a log that looks empty would be lost."""
    backend = open_backend(f"{store.scheme}://no-such-bucket/log", store.options)
    for act in (backend.list, backend.probe):
        with pytest.raises(StateBackendError, match=r"there is no (bucket|container) for"):
            act()


def test_listing_longer_than_a_page_is_whole(backend: StateBackend) -> None:
    """A page of Google has 1,000 names, and a page of Azure 5,000."""
    paths = [f"flushed/{number:05}" for number in range(1_001)]
    for path in paths:
        backend.create(path, b"x")
    assert backend.list("flushed") == paths
    assert backend.sizes() == dict.fromkeys(paths, 1)


def write_all_large(backend: StateBackend, paths: list[str], name: str) -> list[str]:
    """Write large objects; return the paths of those that this process has made."""
    won = []
    for path in paths:
        try:
            with backend.open_output(path) as output:
                output.write(LARGE + name.encode())
        except FileExistsError:
            continue
        won.append(path)
    return won


def write_and_hang(backend: StateBackend, reached: object) -> None:
    """Start to write a large object, and never finish it."""
    with backend.open_output("a") as output:
        output.write(LARGE)
        reached.set()  # type: ignore[attr-defined]
        time.sleep(600)
