"""A broker with ACLs, whose user has only the documented rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.kafka.conftest import PairsTarget, TopicWorld
from tests.protocol.engine import flush
from tests.support.deploy_table import Counted, Row
from wal_sink.demo.kafka import VERSION, Broker
from wal_sink.demo.server import HOST
from wal_sink.errors import WalSinkError
from wal_sink.options import parse
from wal_sink.targets.kafka.options import KafkaOptions

pytestmark = [pytest.mark.test_all, pytest.mark.kafka, pytest.mark.timeout(600)]

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LEDGER, IDS, GROUP = "wal_sink_ledger-", "wal_sink-", "wal_sink"
NEEDED = ("WRITE", "READ")
"""The documented rights without which no window is written. Each of them implies DESCRIBE."""


class SecuredBroker(Broker):
    """A broker with a second listener, at which users log in. The first listener allows everything."""

    ports = 3

    def __init__(self) -> None:
        super().__init__()
        self.secured = f"{HOST}:{self.port + 2}"
        for name in ("listeners", "advertised.listeners"):
            self._settings[name] = f"{self._settings[name]},SASL_PLAINTEXT://{self.secured}"
        self._settings["listener.security.protocol.map"] += ",SASL_PLAINTEXT:SASL_PLAINTEXT"  # type: ignore[operator]
        self._settings |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_me="Geheim";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredBroker]:
    with SecuredBroker() as broker:
        yield broker


def test_documented_kafka_rights_are_sufficient_and_necessary(
    broker: SecuredBroker, counted: Counted
) -> None:
    """Without a right the flush stops with an error. With the right it continues."""
    world = TopicWorld(broker)
    options = {
        "topic": world.topic,
        "kafka.bootstrap.servers": broker.secured,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "me",
        "kafka.sasl.password": "Geheim",
    }
    world.target = PairsTarget(parse(options, KafkaOptions))
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic, literal = (ResourceType.TOPIC, world.topic), ResourcePatternType.LITERAL
    ledger, ids = (ResourceType.TOPIC, LEDGER), (ResourceType.TRANSACTIONAL_ID, IDS)
    group = (ResourceType.GROUP, GROUP)
    rights = {
        (place, operation): AclBinding(
            *(*place, literal if place == topic else ResourcePatternType.PREFIXED),
            *("User:me", "*", getattr(AclOperation, operation), AclPermissionType.ALLOW),
        )
        for place, operations in {
            topic: ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"),
            ledger: ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE"),
            ids: ("WRITE", "DESCRIBE"),
            group: ("DESCRIBE",),
        }.items()
        for operation in operations
    }
    for future in admin.create_acls(list(rights.values())).values():
        future.result()
    world.run().batch([("k", 0)])
    flush(world.flusher())
    taken = [key for key in rights if key[1] in NEEDED]
    for number, key in enumerate(taken, 1):
        acl = rights[key]
        (future,) = admin.delete_acls([like(acl)]).values()
        assert len(future.result()) == 1
        world.end_sessions()
        world.run().batch([("k", number)])
        with pytest.raises(
            WalSinkError, match=r"(?i)authorization failed|not authorized"
        ) as refused:
            world.flush()
        assert not refused.value.transient, key
        (future,) = admin.create_acls([acl]).values()
        future.result()
        world.end_sessions()
        flush(world.flusher())
    rows = sorted(value for _, value in world.visible())
    assert rows == [*range(len(taken) + 1)]
    faults = f"least rights; each of {len(taken)} taken in turn"
    counted(Row("Kafka with ACLs", VERSION, faults, len(taken) + 1, len(rows)))
    world.end_sessions()


def like(acl: AclBinding) -> AclBindingFilter:
    """Return a filter for one right."""
    place = (acl.restype, acl.name, acl.resource_pattern_type)
    return AclBindingFilter(*place, acl.principal, acl.host, acl.operation, acl.permission_type)
