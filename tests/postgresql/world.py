"""A query whose target is a table of a real PostgreSQL; checkpoint and log are in memory."""

from __future__ import annotations

from tests.protocol.engine import World, in_memory
from tests.sql.stores import Postgresql
from wal_sink.demo.postgresql import Server
from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerRow


class PostgresqlWorld(World):
    """Adds rows to a table without a key, in a schema of its own.

    :param port: the port to which the target connects; None: the server's.
    """

    adds = True

    def __init__(self, server: Server, schema: str, port: int | None = None) -> None:
        self.server = server
        self.rows_table = f"{schema}.rows"
        server.execute(f"CREATE TABLE {self.rows_table} (k text, v bigint)")
        uri = server.uri.replace(f":{server.port}/", f":{port or server.port}/")
        store = Postgresql(server, schema)
        target = store.target(uri=uri, table="rows", lock_timeout=0.3, request_timeout=2)
        super().__init__(*in_memory(), target)

    def visible(self) -> list[tuple[str, int]]:
        """Read the table as another client does."""
        return self.server.execute(f"SELECT k, v FROM {self.rows_table}")

    def ledger(self) -> LedgerRow | None:
        """Read the ledger row as another client does; None before the first plan."""
        with self.target.connect(self.query_id) as session:
            try:
                return session.read()
            except TargetRefused:
                return None

    def refuse_two(self, event: str, body: str, kind: str = "TRIGGER") -> None:
        """Make the trigger `two`.

        :param event: when it runs, such as `BEFORE INSERT ON t`.
        :param body: statements of PL/pgSQL.
        """
        function = self.rows_table.replace(".rows", ".two")
        self.server.execute(
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {body} END $$;"
            f" CREATE {kind} two {event} FOR EACH ROW EXECUTE FUNCTION {function}()"
        )
