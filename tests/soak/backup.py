"""A backup of checkpoint and log, and what an operator does when it is restored."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import wal_sink
from wal_sink.testing.servers.cassandra import Node

_AFTER_ALL = 2**62
"""A write timestamp above every other: what is deleted with it stays so. Its keys never come again."""


class Backup:
    """A copy of a checkpoint with the log inside, made while no process works on it."""

    def __init__(self, checkpoint: Path, place: Path) -> None:
        self._checkpoint = checkpoint
        self._place = place
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(checkpoint, place)
        found = wal_sink.status(str(checkpoint))
        self.checkpointed = found.checkpointed
        self.flushed = found.flushed

    def restore(self, node: Node, keyspace: str) -> int:
        """Put it back, and the table as well, but not the ledger: that has gone on.

        :return: how many rows of the lost history are gone from the table.
        """
        shutil.rmtree(self._checkpoint)
        shutil.copytree(self._place, self._checkpoint)
        rows = node.execute(f"SELECT key, epoch FROM {keyspace}.windows")
        lost = [row.key for row in rows if row.epoch > self.checkpointed]
        for key in lost:
            node.execute(
                f"DELETE FROM {keyspace}.windows USING TIMESTAMP {_AFTER_ALL} WHERE key = {key}"
            )
        return len(lost)

    def rewind(self) -> str:
        """Make the ledger follow the restored log; return what the command said.

        :raises RuntimeError: it refused.
        """
        command = [
            *(str(Path(sys.executable).with_name("wal-sink")), "rewind", str(self._checkpoint)),
            *("--to", str(self.flushed), "--restored", "--yes", "--json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stderr}")
        return done.stderr
