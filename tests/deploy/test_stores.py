"""Google Cloud Storage and Azure keep the contract of a state backend, over emulators with real races."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from state_backends import (
    AzureBackend,
    GcsBackend,
    S3Backend,
    StateBackend,
    StateBackendError,
    location,
    open_backend,
)
from state_backends.object_store import PART
from tests.deploy.stores import Store, azurite, fake_gcs
from tests.state_backends.contract import StateBackendContract
from tests.support.neighbours import Counted, Row

LARGE = b"0123456789abcdef" * (PART // 16) + b"and a second part" * 1_000
emulated = [
    pytest.mark.test_all,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Sending a large body"),  # aiohttp, of what gcsfs does
]


_KINDS = {"gcs": fake_gcs, "azure": azurite}


@pytest.fixture(scope="session")
def gcs() -> Iterator[Store]:
    with fake_gcs(fronted=False) as store:
        yield store


@pytest.fixture(scope="session")
def azure() -> Iterator[Store]:
    with azurite(fronted=False) as store:
        yield store


@pytest.fixture(scope="session", params=sorted(_KINDS))
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return each store, with a proxy that can lose answers."""
    with _KINDS[request.param](fronted=True) as store:
        yield store


@pytest.fixture
def backend(store: Store) -> StateBackend:
    return open_backend(f"{store.bucket()}/the/log", store.options)


class TestGcsBackend(StateBackendContract):
    """Processes race on a bucket of fake-gcs-server."""

    pytestmark = emulated
    rounds = 25

    @pytest.fixture
    def backend(self, gcs: Store) -> StateBackend:
        return open_backend(f"{gcs.bucket()}/the/log", gcs.options)


class TestAzureBackend(StateBackendContract):
    """Processes race on a container of Azurite."""

    pytestmark = emulated
    rounds = 25

    @pytest.fixture
    def backend(self, azure: Store) -> StateBackend:
        return open_backend(f"{azure.bucket()}/the/log", azure.options)


class TestEmulated:
    """What the contract does not ask."""

    pytestmark = emulated

    @pytest.mark.parametrize("data", [b"content", LARGE], ids=["small", "large"])
    def test_lost_answer_to_a_create_is_a_success(
        self, store: Store, backend: StateBackend, data: bytes
    ) -> None:
        """The request is repeated, and refused because of the object that it made."""
        with store.front.losing(1), backend.open_output("a") as output:
            output.write(data)
        assert backend.read("a") == data
        with pytest.raises(FileExistsError):
            backend.create("a", data[::-1])
        assert backend.list() == ["a"]

    @pytest.mark.parametrize("other", [b"other", LARGE], ids=["small", "large"])
    def test_creator_beside_an_open_output_wins_or_loses_whole(
        self, backend: StateBackend, other: bytes
    ) -> None:
        """The condition holds at the end of an upload. To Azurite a name with sent blocks is taken before."""
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
        self, backend: StateBackend, counted: Counted, store: Store
    ) -> None:
        """Processes that race for the same objects, each sent in parts."""
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

    def test_killed_writer_of_a_large_output_leaves_no_object(self, backend: StateBackend) -> None:
        """To Azurite its name is taken, until Azure deletes the blocks: an error, and no loss."""
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

    def test_missing_bucket_is_not_an_empty_store(self, store: Store) -> None:
        """A log that looks empty would be flushed as if nothing waited."""
        backend = open_backend(f"{store.scheme}://no-such-bucket/log", store.options)
        for act in (backend.list, backend.probe):
            with pytest.raises(StateBackendError, match=r"there is no (bucket|container) for"):
                act()

    def test_listing_longer_than_a_page_is_whole(self, backend: StateBackend) -> None:
        """Google gives 1,000 names at once, and Azure 5,000; of sizes, too."""
        paths = [f"flushed/{number:05}" for number in range(1_001)]
        for path in paths:
            backend.create(path, b"x")
        assert backend.list("flushed") == paths
        assert backend.sizes() == dict.fromkeys(paths, 1)


def write_all_large(backend: StateBackend, paths: list[str], name: str) -> list[str]:
    """Write large objects; return the paths of those that this process has created."""
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
    """Begin a large object, and never end it."""
    with backend.open_output("a") as output:
        output.write(LARGE)
        reached.set()  # type: ignore[attr-defined]
        time.sleep(600)


# --- URLs, without a store ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kind", "absolute"),
    [
        ("gs://bucket/a/b", GcsBackend, "gs://bucket/a/b"),
        ("gcs://bucket/a/", GcsBackend, "gs://bucket/a"),
        ("abfs://box/a", AzureBackend, "abfs://box/a"),
        ("az://box", AzureBackend, "abfs://box"),
        (
            "abfss://box@acct.dfs.core.windows.net/a//b",
            AzureBackend,
            "abfs://box@acct.dfs.core.windows.net/a/b",
        ),
    ],
)
def test_urls_of_spark_and_clients_name_one_store(
    url: str, kind: type[StateBackend], absolute: str
) -> None:
    """As Spark writes a checkpoint's location, and as the clients do."""
    backend = open_backend(
        url, {"token": "anon"} if kind is GcsBackend else {"account_key": "Geheim"}
    )
    assert type(backend) is kind
    assert backend.url == absolute
    assert open_backend(absolute) == backend
    assert "Geheim" not in repr(backend)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("hdfs://name/log", "no create that fails where a file exists.*s3, gs, abfss"),
        ("dbfs:/log", "Use the bucket itself"),
        ("abfss://box@secret/a", "<container>@<account>.dfs.core.windows.net"),
        ("abfss://box@/a", "<container>@<account>.dfs.core.windows.net"),
        ("gs://user:secret@bucket/a", "a bucket has no '@'"),
        ("ftp://secret/a", "no store for URLs that start with 'ftp'.*wal_sink.state_backends"),
    ],
)
def test_url_is_refused_with_what_to_use(url: str, reason: str) -> None:
    """Without repeating what may be a secret."""
    with pytest.raises(StateBackendError, match=reason) as caught:
        open_backend(url)
    assert "secret" not in str(caught.value)


def test_accounts_of_url_and_options_agree() -> None:
    """Else rows of one account would be looked for in another."""
    with pytest.raises(StateBackendError, match="another one: remove account_name"):
        open_backend("abfss://box@one.dfs.core.windows.net/a", {"account_name": "two"})


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("state_backends:S3Backend", ""),
        ("state_backends:no_such", "cannot be imported"),
        ("state_backends:open_backend", "not a StateBackend"),
    ],
)
def test_backend_registers_by_entry_point(
    monkeypatch: pytest.MonkeyPatch, place: str, reason: str
) -> None:
    """Under its scheme; one of ours cannot be taken."""
    points = EntryPoints(EntryPoint(name, place, location.GROUP) for name in ("mine", "s3"))
    monkeypatch.setattr("importlib.metadata.entry_points", points.select)
    location._registered.cache_clear()
    try:
        if reason:
            with pytest.raises(StateBackendError, match=reason):
                open_backend("mine://x")
        else:
            assert type(open_backend("mine://x/y", {})) is S3Backend
        assert type(open_backend("s3://bucket/log")).__name__ == "S3Backend"
    finally:
        location._registered.cache_clear()
