"""Contract suites: test classes that check what `wal_sink.targets.base` requires of a target.

An author derives the suite of the target's session, and writes a fixture and a method::

    class TestMyTarget(TargetContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # writes to an empty table with the columns of WITH_DOUBLE; nulls unset;
            #      the table has the key (k, n) for an IdempotentSession, otherwise no key

        def records(self, target: Target) -> list[tuple[str, int, int | None, str | None, float | None]]:
            ...  # read the table without the target: (k, n, v, t, d)

========================================  =====================================  ==========
suite                                     for                                    guarantees
========================================  =====================================  ==========
`cells.TargetContract`                    `IdempotentSession`, parallel writes   1 to 6
`cells.SequentialContract`                `IdempotentSession`, one writer        1 to 5
`transactional.TransactionalContract`     `TransactionalSession`                 1, 2, 7
`transactional.SqlContract`               targets on `SqlTarget`                 1, 2, 7
`staged.StagedContract`                   `StagedSession`                        1, 2, 8-10
========================================  =====================================  ==========

Each of these suites kills flushers (`kills`). Some targets need a second suite: `refusals` if the session
raises `RowsRefused`, `server_restart` if a test can kill the server, `deletes` and `unavailable` if the
target declares the option.
"""

from __future__ import annotations

import pkgutil

import pytest

# By default pytest shows the values of a failed `assert` only in test files. The suites are not test files.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
)
