"""The error codes of MySQL and MariaDB, and what to do about some of them. No I/O.

The names are those of the servers' manuals. Codes from 2000 to 2999 are errors of the client's library.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.targets.sql.errors import Code, ErrorCodes

_LOCK_WAIT_TIMEOUT = 1205
_SIGNAL = 1644

_PASSING = {
    # disk and memory
    1021: "ER_DISK_FULL",
    1030: "ER_GET_ERRNO",
    1037: "ER_OUTOFMEMORY",
    1038: "ER_OUT_OF_SORTMEMORY",
    1114: "ER_RECORD_FILE_FULL",
    # too many connections
    1040: "ER_CON_COUNT_ERROR",
    1203: "ER_TOO_MANY_USER_CONNECTIONS",
    1226: "ER_USER_LIMIT_REACHED",
    # the server stops, or is read-only
    1053: "ER_SERVER_SHUTDOWN",
    1077: "ER_NORMAL_SHUTDOWN",
    1079: "ER_SHUTDOWN_COMPLETE",
    1080: "ER_FORCING_CLOSE",
    1290: "ER_OPTION_PREVENTS_STATEMENT",
    1792: "ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION",
    1836: "ER_READ_ONLY_MODE",
    # locks and time limits
    _LOCK_WAIT_TIMEOUT: "ER_LOCK_WAIT_TIMEOUT",
    1213: "ER_LOCK_DEADLOCK",
    1317: "ER_QUERY_INTERRUPTED",
    1969: "ER_STATEMENT_TIMEOUT",  # MariaDB
    3024: "ER_QUERY_TIMEOUT",  # MySQL
    3572: "ER_LOCK_NOWAIT",  # MySQL
    # a lost or killed connection
    1042: "ER_BAD_HOST_ERROR",
    1105: "ER_UNKNOWN_ERROR",
    1152: "ER_ABORTING_CONNECTION",
    1158: "ER_NET_READ_ERROR",
    1159: "ER_NET_READ_INTERRUPTED",
    1160: "ER_NET_ERROR_ON_WRITE",
    1161: "ER_NET_WRITE_INTERRUPTED",
    1184: "ER_NEW_ABORTING_CONNECTION",
    1927: "ER_CONNECTION_KILLED",  # MariaDB
    4031: "ER_CLIENT_INTERACTION_TIMEOUT",  # MySQL
    2002: "CR_CONNECTION_ERROR",
    2003: "CR_CONN_HOST_ERROR",
    2006: "CR_SERVER_GONE_ERROR",
    2012: "CR_SERVER_HANDSHAKE_ERR",
    2013: "CR_SERVER_LOST",
    2014: "CR_COMMANDS_OUT_OF_SYNC",
    2027: "CR_MALFORMED_PACKET",
    2055: "CR_SERVER_LOST_EXTENDED",
}
_REFUSING = {
    # nulls, and columns without a default
    1048: "ER_BAD_NULL_ERROR",
    1364: "ER_NO_DEFAULT_FOR_FIELD",
    # unique keys
    1062: "ER_DUP_ENTRY",
    1169: "ER_DUP_UNIQUE",
    1557: "ER_FOREIGN_DUPLICATE_KEY",
    1586: "ER_DUP_ENTRY_WITH_KEY_NAME",
    # foreign keys
    1216: "ER_NO_REFERENCED_ROW",
    1217: "ER_ROW_IS_REFERENCED",
    1451: "ER_ROW_IS_REFERENCED_2",
    1452: "ER_NO_REFERENCED_ROW_2",
    # values out of range, too long, or of a wrong form
    1118: "ER_TOO_BIG_ROWSIZE",
    1264: "ER_WARN_DATA_OUT_OF_RANGE",
    1265: "WARN_DATA_TRUNCATED",
    1292: "ER_TRUNCATED_WRONG_VALUE",
    1366: "ER_TRUNCATED_WRONG_VALUE_FOR_FIELD",
    1406: "ER_DATA_TOO_LONG",
    1411: "ER_WRONG_VALUE_FOR_TYPE",
    1416: "ER_CANT_CREATE_GEOMETRY_OBJECT",
    1690: "ER_DATA_OUT_OF_RANGE",
    3140: "ER_INVALID_JSON_TEXT",  # MySQL
    3156: "ER_INVALID_JSON_VALUE_FOR_CAST",  # MySQL
    # partitions
    1526: "ER_NO_PARTITION_FOR_GIVEN_VALUE",
    1748: "ER_ROW_DOES_NOT_MATCH_GIVEN_PARTITION_SET",
    # triggers and CHECK constraints
    _SIGNAL: "ER_SIGNAL_EXCEPTION",
    3819: "ER_CHECK_CONSTRAINT_VIOLATED",  # MySQL
    4025: "ER_CONSTRAINT_FAILED",  # MariaDB
}

_TOO_WIDE = (
    "A row takes 8,126 bytes and 1,017 columns; a long text or binary counts 40 bytes at most. Put columns"
    ' together into one, .withColumn("v", F.to_json(F.struct("a", "b", …))), and drop them; or write to two'
    " tables."
)
_TOO_LONG = (
    "A key takes 16 columns and 3,072 bytes, four for each character of its texts, and no blob. Name fewer"
    " columns in keyColumns, or make the table yourself, with shorter ones, such as varbinary(255)."
)
_REMEDIES: Mapping[Code, str] = {
    1005: f"Make the table as the server takes it, and leave out createTable. {_TOO_WIDE}",
    1049: "Create the database that the answer names, by CREATE DATABASE, or correct it in sql.url or table.",
    **dict.fromkeys((1070, 1071, 1170), _TOO_LONG),
    1117: _TOO_WIDE,
    1118: _TOO_WIDE,
    1665: "Run: SET GLOBAL binlog_format = 'MIXED'; Set it in the server's configuration, too.",
}


def _code(error: BaseException) -> Code:
    if getattr(error, "sqlstate", None) == "45000":  # a SIGNAL may have any number
        return _SIGNAL
    code = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    return code if isinstance(code, int) and code else None


MYSQL_CODES = ErrorCodes(
    _code,
    passing=frozenset(_PASSING),
    refusing=frozenset(_REFUSING),
    locked=frozenset({_LOCK_WAIT_TIMEOUT}),
    remedies=_REMEDIES,
)
