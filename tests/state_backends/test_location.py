"""`open_backend` and `child_url`: URLs of each store, URLs that are refused, and stores of other packages."""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from uuid import uuid4

import pytest

from state_backends import (
    AzureBackend,
    GcsBackend,
    LocalBackend,
    MemoryBackend,
    S3Backend,
    StateBackend,
    StateBackendError,
    child_url,
    location,
    open_backend,
)

OPTIONS: dict[type[StateBackend], dict[str, object]] = {
    GcsBackend: {"token": "anon"},
    AzureBackend: {"account_key": "Geheim"},
}


@pytest.mark.parametrize(
    ("url", "kind", "absolute"),
    [
        ("/data/log", LocalBackend, "file:///data/log"),
        ("/data/../log/", LocalBackend, "file:///log"),
        ("//data//log", LocalBackend, "file:///data/log"),
        ("file:/data/log", LocalBackend, "file:///data/log"),
        ("file:///data/log/", LocalBackend, "file:///data/log"),
        ("FILE://localhost/data/log", LocalBackend, "file:///data/log"),
        ("file:////data", LocalBackend, "file:///data"),
        ("file:///a%20b?c=d#e f", LocalBackend, "file:///a%20b?c=d#e f"),
        ("memory://name", MemoryBackend, "memory://name"),
        ("memory://name/query/", MemoryBackend, "memory://name/query"),
        ("s3://bucket/a/b", S3Backend, "s3://bucket/a/b"),
        ("s3a://bucket/a/b/", S3Backend, "s3://bucket/a/b"),
        ("S3N://bucket", S3Backend, "s3://bucket"),
        ("s3a://bucket//a/../b", S3Backend, "s3://bucket/b"),
        ("s3://bucket/year=2026/a b%20#c?d", S3Backend, "s3://bucket/year=2026/a b%20#c?d"),
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
    backend = open_backend(url, OPTIONS.get(kind))
    assert type(backend) is kind
    assert backend.url == absolute
    assert open_backend(absolute) == backend
    assert backend.process_local == (kind is MemoryBackend)
    assert backend.billed == (kind not in {LocalBackend, MemoryBackend})
    assert "Geheim" not in repr(backend)


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_backend("data/log")
    monkeypatch.chdir("/")
    assert backend.url == f"file://{tmp_path}/data/log"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file://elsewhere/log", "host 'elsewhere'"),
        ("file:log", "no absolute path"),
        ("file://localhost", "no absolute path"),
        ("memory:name", "two slashes"),
        ("memory://", "must not be empty"),
        ("memory://a/../b", "starts with a dot"),
        ("~/log", "not expanded"),
        ("", "must not be empty"),
        ("/a\0b", "NUL"),
        ("s3a://key:secret@bucket/log", "a bucket has no '@'"),
        ("s3:///log", "<bucket>"),
        ("s3:log", "<bucket>"),
        ("gs://user:secret@bucket/a", "a bucket has no '@'"),
        ("abfss://box@secret/a", "<container>@<account>.dfs.core.windows.net"),
        ("abfss://box@/a", "<container>@<account>.dfs.core.windows.net"),
        ("hdfs://key:secret@host/log", "hdfs:.*no create that fails where a file exists.*s3, gs"),
        ("dbfs:/log", "Use the bucket itself"),
        ("ftp://secret/a", "no store for URLs that start with 'ftp'.*wal_sink.state_backends"),
    ],
)
def test_url_unfit_for_a_log_is_refused(url: str, reason: str) -> None:
    """The error does not contain the URL, which may contain a secret."""
    with pytest.raises(StateBackendError, match=reason) as caught:
        open_backend(url)
    assert "secret" not in str(caught.value)


def test_options_without_effect_are_refused() -> None:
    """The error names the option, but not its value."""
    with pytest.raises(StateBackendError, match=r"\['key'\].*remove") as caught:
        open_backend("/data/log", {"key": "secret"})
    assert "secret" not in str(caught.value)
    assert open_backend("/data/log", {}) == open_backend("/data/log")


def test_account_other_than_in_the_url_is_refused() -> None:
    with pytest.raises(StateBackendError, match="another one: remove account_name"):
        open_backend("abfss://box@one.dfs.core.windows.net/a", {"account_name": "two"})


def test_error_of_a_missing_client_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StateBackendError, match=r"s3fs.*pip install 'wal_sink\[s3\]'"):
        open_backend("s3://bucket/log")


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
    """An entry point cannot replace a scheme of this package."""
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


@pytest.mark.parametrize("url", ["/", "/log/", "file:///log", "file:/", "file:///", "memory://log"])
def test_child_url_is_a_folder_of_its_parent(url: str) -> None:
    child = open_backend(child_url(url, "wal_sink", "a/b"))
    parent = open_backend(url).url
    assert child.url == parent + ("" if parent.endswith("/") else "/") + "wal_sink/a/b"
    assert child_url(url) == url


def test_child_and_parent_see_the_same_objects(tmp_path: Path) -> None:
    for url in (str(tmp_path), f"memory://{uuid4().hex}"):
        parent, child = open_backend(url), open_backend(child_url(url, "part"))
        parent.create("part/x", b"1")
        child.create("y/z", b"2")
        assert child.list() == ["x", "y/z"]
        assert parent.list() == ["part/x", "part/y/z"]


@pytest.mark.parametrize("part", ["..", "", "a/", "/a", ".hidden"])
def test_child_url_with_invalid_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="path"):
        child_url("/log", part)
    with pytest.raises(ValueError, match="URL"):
        child_url("", "part")
