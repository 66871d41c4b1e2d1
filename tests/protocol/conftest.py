"""Fixtures that make a played query over each kind of store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import memory, open_backend
from tests.protocol.engine import World
from tests.support.s3 import S3


@pytest.fixture(autouse=True)
def _empty_memory() -> Iterator[None]:
    """Empty the stores in memory, which become slow when they are full."""
    memory._objects.clear()
    yield
    memory._objects.clear()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `world` with each kind of store, or with those that a module names in STORES.

    S3 runs with `make test-all` only. The contract suite of stores tests S3, and `test_object_store` tests
    what is special about it.
    """
    if "world" in metafunc.fixturenames:
        stores = getattr(metafunc.module, "STORES", ("memory", "local", "s3"))
        marks = [pytest.mark.s3, pytest.mark.test_all]
        marked = [pytest.param(s, marks=marks) if s == "s3" else s for s in stores]
        metafunc.parametrize("world", marked, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A new query on each kind of store."""
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        bucket = s3.bucket()
        checkpoint = open_backend(f"{bucket}/checkpoint", s3.options)
        world = World(checkpoint, open_backend(f"{bucket}/log", s3.options))
        world.storage_options = s3.options
        return world
    root = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path)
    return World(open_backend(f"{root}/checkpoint"), open_backend(f"{root}/log"))
