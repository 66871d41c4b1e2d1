"""What PostgreSQL's errors mean, and the settings of a session. Pure."""

from __future__ import annotations

from wal_sink.targets.sql.database import Code, Errors, is_among, texts

# Connection, serialization and deadlock, resources, locks, an operator, the system, a replica. Of class 55
# two alone: an upsert by a deferrable key, for one, would be refused for ever.
_PASSING = texts("08 25006 25P03 40 53 55006 55P03 57 58")


def _sqlstate(error: BaseException) -> Code:
    """Return the SQLSTATE. A RAISE may have any, and refuses a row unless that one passes."""
    code = getattr(error, "sqlstate", None)
    source = getattr(getattr(error, "diag", None), "source_function", None)
    if not isinstance(code, str):
        return None
    return "P0001" if source == "exec_stmt_raise" and not is_among(code, _PASSING) else code


ERRORS = Errors(
    _sqlstate,
    _PASSING,
    locked=texts("55P03"),
    # Values, constraints, WITH CHECK OPTION, RAISE and ASSERT, what is too long for an index.
    refusing=texts("22 23 44 P0 54000"),
    of_statement=texts("22P03 22P04"),  # COPY cannot read its input
    remedies={
        "54011": "Rows of an upsert go through a temporary table, which has a column more. Leave some columns"
        " out of the DataFrame.",
        "P0001": "A start runs the statement that writes, without rows, and rolls it back: a trigger refuses"
        " that. Let the trigger pass if it has no rows.",
    },
)


SETTINGS = """
    SELECT set_config(s.name, wanted.setting, false)
    FROM (VALUES
        ('TimeZone', 'UTC'),
        ('default_transaction_isolation', 'read committed'),
        ('default_transaction_read_only', 'off'),
        ('row_security', 'off'), -- an error, where a policy would hide rows
        ('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END),
        ('statement_timeout', '0'),
        ('transaction_timeout', '0'),
        ('lock_timeout', '{lock_ms}'),
        ('idle_in_transaction_session_timeout', '{idle_ms}')) AS wanted(name, setting)
    JOIN pg_catalog.pg_settings s USING (name)"""
"""Of a session, whatever the role's or the database's defaults are; of those that the server has:
`transaction_timeout` came with PostgreSQL 17. An acknowledged COMMIT has to survive a crash, as the log is
trimmed after it: what is weaker than on this server's disk is made `on`."""
