"""Runs a real PostgreSQL server in a Docker container, for tests: the official image, by testcontainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal_sink.testing.postgresql.server import DATABASE, USER, Server
from wal_sink.testing.servers.container import Container

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testcontainers.core.container import DockerContainer

IMAGE = "postgres:17"


class PostgresqlContainer(Container, Server):
    """One PostgreSQL server in a container, with the interface of `InstalledPostgresql`.

    :param settings: entries of postgresql.conf.
    :raises DockerNotUsable: no Docker engine answers.
    """

    def __init__(self, settings: Mapping[str, object] = {}, *, image: str = IMAGE) -> None:
        super().__init__(image)
        self._is_to_run(_configured(image, self.password, settings), 5432)


def _configured(image: str, password: str, settings: Mapping[str, object]) -> DockerContainer:
    """Describe the container; nothing is started, and `start` waits for nothing."""
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415
    from testcontainers.core.waiting_utils import WaitStrategy  # noqa: PLC0415

    class Plain(PostgresContainer):
        """`Server.start` waits, also when the container is started again."""

        def _connect(self) -> None:
            """Return."""

    class Afterwards(WaitStrategy):
        """As above."""

        def wait_until_ready(self, container: object) -> None:
            """Return."""

    container = Plain(image, username=USER, password=password, dbname=DATABASE)
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return container.with_command(["postgres", *options]).waiting_for(Afterwards())
