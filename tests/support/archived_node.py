"""A Cassandra node for `class_archive`: it loads the classes that the tests' nodes load."""

from __future__ import annotations

from wal_sink.demo.cassandra import EmbeddedCassandra


def main() -> None:
    """Write and read some rows; end the node normally, since its JVM writes the archive when it ends."""
    with EmbeddedCassandra() as node:
        node.create_keyspace("ks")
        node.execute("CREATE TABLE ks.t (id int PRIMARY KEY, v text)")
        node.execute("INSERT INTO ks.t (id, v) VALUES (1, 'a') IF NOT EXISTS")
        node.execute("UPDATE ks.t SET v = 'b' WHERE id = 1 IF v = 'a'")
        session = node.session()
        insert = session.prepare("INSERT INTO ks.t (id, v) VALUES (?, ?) USING TIMESTAMP ?")
        for key in range(10):
            session.execute(insert, (key, "c", 1))
        node.execute("SELECT id, v, writetime(v) FROM ks.t")
        node.stop()


if __name__ == "__main__":
    main()
