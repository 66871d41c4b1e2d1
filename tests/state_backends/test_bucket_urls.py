"""URLs of buckets, and backends that other packages register."""

from __future__ import annotations

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
    backend = open_backend(
        url, {"token": "anon"} if kind is GcsBackend else {"account_key": "Geheim"}
    )
    assert type(backend) is kind
    assert backend.url == absolute
    assert open_backend(absolute) == backend
    assert "Geheim" not in repr(backend)


def test_another_account_in_the_options_is_refused() -> None:
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
