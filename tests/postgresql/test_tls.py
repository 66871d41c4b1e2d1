"""TLS and certificates, by libpq's own parameters in the URI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cassandra.certificates import Certificates
from wal_sink.demo.postgresql import Server
from wal_sink.errors import TargetUnavailable
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"), "127.0.0.1")


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[Server]:
    """Start a server with a certificate for its address."""
    with Server() as server:
        server.execute("CREATE TABLE t (id bigint)")
        server.stop()
        owner = server.data.stat()
        for name, file in (
            ("server.crt", certificates.client),
            ("server.key", certificates.client_key),
        ):
            path = Path(shutil.copy(file, server.data / name))
            path.chmod(0o600)
            os.chown(path, owner.st_uid, owner.st_gid)
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")
        yield server.start()


def test_server_needs_a_trusted_certificate(server: Server, certificates: Certificates) -> None:
    """Another server gets no password."""

    def trusting(authority: Path) -> PostgresqlTarget:
        uri = f"{server.uri}?sslmode=verify-full&sslrootcert={authority}"
        return PostgresqlTarget(PostgresqlOptions(uri=uri, table="t"))

    assert trusting(certificates.ca).plan(SCHEMA, "key").columns
    with pytest.raises(TargetUnavailable, match="certificate verify failed") as caught:
        trusting(certificates.stranger).plan(SCHEMA, "key")
    assert server.password not in str(caught.value)
