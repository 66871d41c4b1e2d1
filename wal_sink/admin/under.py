"""`flush --under`: finds every query whose log is below one of some folders.

The operator's options apply to all these queries, and each log says where its query connects. So a query is
refused if its log names another database than the operator's options, or a checkpoint outside the folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from wal_sink.admin.flush import Candidate
from wal_sink.admin.query import Query, find_query, logged_options
from wal_sink.configuration import options_by_target, storage_options
from wal_sink.errors import OptionError, WrongOwner, printable, stand_in
from wal_sink.options import (
    SinkOptions,
    fields,
    lowered,
    names,
    options_of,
    parse,
    public,
    qualified,
)
from wal_sink.targets.registry import is_installed, target_type
from wal_sink.wal.location import LogPlace, logs_below, named_checkpoint, open_root, store_errors


class LogsUnder:
    """Finds every query whose log is below one of several folders, or prefixes of buckets.

    :param options: the operator's options for all queries.
    :raises OptionError: a folder cannot be opened.
    """

    def __init__(self, urls: Sequence[str], options: Mapping[str, str]) -> None:
        self._options = options
        # `parse` needs a checkpoint, on which the storage options do not depend.
        self._of_store = storage_options(
            parse({**options, "checkpointLocation": urls[0]}, SinkOptions)
        )[0]
        try:
            self._roots = [open_root(url, self._of_store) for url in urls]
        except OSError as error:
            raise OptionError(
                f"{', '.join(urls)} cannot be searched for logs: {error}.",
                "Name folders, or s3://bucket/prefix, gs://bucket/prefix or abfss://….",
            ) from error
        self.billed = any(root.billed for root in self._roots)
        """True if a store bills each request."""

    def __call__(self) -> Iterator[Candidate]:
        """Yield each query. A query below two of the folders comes twice, with the same place."""
        with store_errors("A place that --under names"):
            places = [place for root in self._roots for place in logs_below(root)]
        for place in places:
            yield Candidate(place.url, partial(self._open, place))

    def _open(self, place: LogPlace) -> Query:
        """Open the query of a log, by the checkpoint that the log names.

        :raises WrongOwner: the checkpoint is outside the folders, or belongs to another query.
        :raises OptionError: the query has published nothing yet, or the options do not fit the log.
        """
        with store_errors():
            checkpoint = named_checkpoint(place, self._of_store)
        if checkpoint is None:
            raise OptionError("The log has no state yet.", "Wait for its first micro-batch.")
        folders = [f"{root.url.rstrip('/')}/" for root in self._roots]
        if not any(f"{checkpoint}/".startswith(folder) for folder in folders):
            raise WrongOwner(
                f"The log {place.url} names the checkpoint {printable(checkpoint)}, which is not below"
                f" {' or '.join(root.url for root in self._roots)}. Anyone who can write to the log can"
                " change that.",
                "If it is right, name the folder of the checkpoint by a further --under.",
            )
        query = find_query(checkpoint, place.logs, self._options)
        if query.query_id != place.query_id:
            raise WrongOwner(
                f"The log {place.url} names the checkpoint {checkpoint}. The former checkpoint was deleted,"
                f" and the present one belongs to query {query.query_id}.",
                "The pending epochs of this log are not flushed, since their `commits/` is gone."
                f" {stand_in(place.url, 'LAST')} If nobody needs the rows, delete the log.",
            )
        logged = logged_options(query.state())
        options = _options_for_query(self._options, logged, query.checkpoint.url)
        return query._replace(options=options)


def _options_for_query(
    options: Mapping[str, str], logged: Mapping[str, str], checkpoint: str
) -> dict[str, str]:
    """Return the operator's options for a query, without the options of targets that the query lacks.

    :param options: the operator's options for all queries.
    :param logged: the options in the query's log, by lower-case name.
    :raises OptionError: an option and the log name different places to connect to.
    """
    operators = lowered(options)
    of_sink = {name.lower() for name in names(SinkOptions)} - {"target"}
    selected = {name: value for name, value in operators.items() if name in of_sink}
    for prefix, kind, of_log in options_by_target(logged):
        of_operator = options_of(prefix, operators)
        if of_operator.get("target") == kind:
            selected[qualified(prefix, "target")] = kind
        elif not is_installed(kind):
            continue  # only the log names the class, so the class is not imported
        declared = target_type(kind).options_type
        known = {name.lower() for name in names(declared)}
        own = {name: value for name, value in of_operator.items() if name in known}
        # The error below shows these values, so they have no passwords.
        effective = lowered(public(parse({**of_log, **own}, declared)))
        for option in fields(declared):
            name = option.name.lower()
            place, logged_place = (
                values.get(name, option.default_text) for values in (effective, of_log)
            )
            if name in own and "connects" in option.extra and place != logged_place:
                raise OptionError(
                    f"This flusher was given {qualified(prefix, option.name)}={printable(place)}, and the"
                    f" log says {printable(logged_place) or 'nothing'}.",
                    "Flush this query by a process of its own:\n"
                    f"wal-sink flush {checkpoint} --follow --option NAME=VALUE",
                )
        selected |= {qualified(prefix, name): value for name, value in own.items()}
    return selected
