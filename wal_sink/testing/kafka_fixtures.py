"""A real Kafka broker for pytest: `pytest_plugins = ["wal_sink.testing.kafka_fixtures"]`.

`kafka` is a started `wal_sink.testing.servers.kafka.Broker`, one for the whole run. It starts when a
test asks for it, and needs Java 17; the first start downloads its jars.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wal_sink.testing.servers.kafka import Broker


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """Start the one broker; a test that leaves it stopped or paused takes one of its own."""
    with Broker() as broker:
        yield broker
