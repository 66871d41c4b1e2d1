"""Fixtures of a Spark session: one for each process, since a JVM has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def sessions() -> Iterator[tuple[SparkSession, SparkSession]]:
    """Return a classic session with three slots, since a flush job needs two, and its sibling."""
    from wal_sink.demo.local_spark import local_session  # noqa: PLC0415 -- loads Spark
    from wal_sink.spark.data_source import WalSinkDataSource  # noqa: PLC0415 -- loads Spark

    session = local_session(**{"spark.master": "local[3]"})
    other = session.newSession()
    # Without a format of its own, this session would refuse formats that the first session registers.
    other.dataSource.register(WalSinkDataSource)
    yield session, other
    session.stop()


@pytest.fixture(scope="session")
def spark(sessions: tuple[SparkSession, SparkSession]) -> SparkSession:
    """Return the session."""
    return sessions[0]


@pytest.fixture(scope="session")
def sibling(sessions: tuple[SparkSession, SparkSession]) -> SparkSession:
    """Return a second session of the same context, with the format and without a handle."""
    return sessions[1]
