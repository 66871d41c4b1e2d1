"""A target that agrees on a plan and then answers nothing, as a database that is down."""

from __future__ import annotations

from typing import NoReturn

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Owner
from wal_sink.targets.cassandra import CassandraTarget

NAME = f"{__name__}:StandingTarget"


class StandingTarget(CassandraTarget):
    """Cassandra that takes no connection once the plan is made."""

    def connect(self, owner: Owner) -> NoReturn:
        """Refuse."""
        raise TargetUnavailable(f"It is away for {owner}.", "Wait.")
