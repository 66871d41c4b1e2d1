"""`flush --follow`: flushes queries until a signal ends the command, also queries that start later.

A `Follower` refreshes its list of queries every few seconds. It starts a flusher for each target of a query,
restarts the flushers if a new run has other options, and stops them if the log is gone. Several processes may
follow the same logs.

With `--under`, the operator's options apply to all queries below a folder, and each log says where its query
connects. So a query is refused if its log names another database than the operator's options, or a checkpoint
outside the folders that the operator named. `admin.confirm` has the other checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from wal_sink.admin.confirm import options_for_query
from wal_sink.admin.flush import FlushDone, HostedFlusher, Wait, Watch
from wal_sink.admin.query import Query, find_query, logged_options
from wal_sink.configuration import storage_options
from wal_sink.errors import OptionError, WalSinkError, WrongOwner, printable, stand_in
from wal_sink.options import SinkOptions, parse
from wal_sink.wal.discovery import LogPlace, logs_below, named_checkpoint, open_root
from wal_sink.wal.location import store_errors

REFRESH_S, REFRESH_BILLED_S = 2.0, 60.0
"""Seconds between two reads of the list of queries; the second one is for stores with billed requests."""


class Candidate(NamedTuple):
    """A query that may have something to flush."""

    place: str
    """URL of the log or the checkpoint. It identifies the query."""
    open: Callable[[], Query]
    """Opens the query; raises a `WalSinkError` if it cannot be flushed yet."""


Find = Callable[[], Iterable[Candidate]]
"""Returns the queries that are there now."""

_LIST = ""
"""The place of an error of `Find` itself, which concerns no query."""


class _Followed(NamedTuple):
    """A query whose flushers run."""

    query_id: str
    options: Mapping[str, str]
    """The options of the run for which the flushers were started."""
    flushers: Sequence[HostedFlusher]


class Follower:
    """Flushes all queries of a list. Only one thread may use it.

    :param find: returns the present queries; called at each refresh.
    :param say: called with a line of text at each change.
    :param watch: makes the metrics; None for no metrics.
    :param target: the only target to flush; empty for all targets.
    :param billed: True if the store of the logs bills each request.
    """

    def __init__(
        self,
        find: Find,
        say: Callable[[str], object],
        watch: Watch | None = None,
        *,
        target: str = "",
        billed: bool = False,
    ) -> None:
        self._find, self._say, self._watch, self._target = find, say, watch, target
        self._period_s = REFRESH_BILLED_S if billed else REFRESH_S
        self._followed: dict[str, _Followed] = {}
        self._complaints: dict[str, str] = {}
        self._outcomes: dict[tuple[str, str], FlushDone] = {}

    def run(self, wait: Wait) -> list[FlushDone]:
        """Refresh and flush until `wait` returns True; return one outcome for each query and target."""
        try:
            self.refresh()
            while not wait(self._period_s):
                self.refresh()
        finally:
            for followed in self._followed.values():
                for flusher in followed.flushers:
                    flusher.stop()  # all of them first, so that they end at the same time
            for place in list(self._followed):
                self._end(place)
        return list(self._outcomes.values())

    def refresh(self) -> None:
        """Start the flushers of new queries, and end the flushers of queries that are gone."""
        try:
            candidates = {candidate.place: candidate for candidate in self._find()}
        except (OSError, WalSinkError) as error:
            self._complain(_LIST, error)
            return
        self._complaints.pop(_LIST, None)
        for place in self._followed.keys() - candidates.keys():
            self._say(f"The log {place} is gone. Nothing more is flushed from it")
            self._end(place)
        for place in self._complaints.keys() - candidates.keys():
            del self._complaints[place]
        for place, candidate in candidates.items():
            try:
                self.follow(candidate)
            except (OSError, WalSinkError) as error:
                self._complain(place, error)
            else:
                self._complaints.pop(place, None)

    @store_errors()
    def follow(self, candidate: Candidate) -> None:
        """Start the flushers of a query, unless they run with its present options.

        :raises WalSinkError: the query cannot be flushed now.
        """
        followed, query = self._followed.get(candidate.place), candidate.open()
        state = query.own_state()
        options = logged_options(state)
        if followed is not None:
            is_same = (followed.query_id, followed.options) == (query.query_id, options)
            if is_same and all(flusher.is_alive() for flusher in followed.flushers):
                return
            self._end(candidate.place)
        rate = query.sink_options(state).max_rows_per_second
        flushers = [
            HostedFlusher(pipeline, rate, self._watch)
            for pipeline in query.pipelines(state, self._target)
        ]
        for flusher in flushers:
            flusher.start()
        self._followed[candidate.place] = _Followed(query.query_id, options, flushers)
        targets = ", ".join(flusher.pipeline.target_name for flusher in flushers)
        self._say(f"Query {query.query_id}: flushing {query.checkpoint.url} to {targets}")

    def _end(self, place: str) -> None:
        """End the flushers of a query, and add their counts to its outcomes."""
        followed = self._followed.pop(place)
        for flusher in followed.flushers:
            flusher.stop()
        for flusher in followed.flushers:
            try:
                outcome = flusher.end()
            except (OSError, WalSinkError) as error:
                self._complain(place, error)
                continue
            former = self._outcomes.get((outcome.query_id, outcome.target))
            if former is not None:
                sums = ("epochs", "rows", "bytes", "seconds")
                added = {name: getattr(former, name) + getattr(outcome, name) for name in sums}
                outcome = msgspec.structs.replace(outcome, **added)
            self._outcomes[outcome.query_id, outcome.target] = outcome

    def _complain(self, place: str, error: Exception) -> None:
        """Report why a query is not flushed; report the same error once. Each refresh tries again."""
        text = error.one_line if isinstance(error, WalSinkError) else repr(error)
        if self._complaints.get(place) != text:
            self._complaints[place] = text
            self._say(f"{place or 'The logs'}: not flushed for now. {text}")


def at_checkpoint(checkpoint: str, wal: str | None, options: Mapping[str, str]) -> Candidate:
    """Return the query at a checkpoint, which may start later.

    :param wal, options: see `find_query`.
    """
    return Candidate(checkpoint, partial(find_query, checkpoint, wal, options))


class LogsUnder:
    """Finds every query whose log is below one of several folders.

    :param urls: folders, or prefixes of buckets.
    :param options: the operator's options for all queries.
    :raises OptionError: a folder cannot be opened.
    """

    def __init__(self, urls: Sequence[str], options: Mapping[str, str]) -> None:
        self._options = options
        # `parse` needs a checkpoint. The storage options do not depend on it.
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
        """Yield each query. A query below two of the folders is yielded twice, with the same place."""
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
        if not any(f"{checkpoint}/".startswith(f"{root.url}/") for root in self._roots):
            raise WrongOwner(
                f"The log {place.url} names the checkpoint {printable(checkpoint)}, which is not below"
                f" {' or '.join(root.url for root in self._roots)}. Anyone who can write to the log can"
                " change that.",
                "If it is right, name the folder of the checkpoint by a further --under.",
            )
        query = find_query(checkpoint, place.logs, self._options)
        if query.query_id != place.query_id:
            raise WrongOwner(
                f"The log {place.url} names the checkpoint {checkpoint}. This folder was deleted, and has"
                f" the checkpoint of query {query.query_id} now.",
                "The pending epochs of this log are not flushed, since their `commits/` is gone."
                f" {stand_in(place.url, 'LAST')} If nobody needs the rows, delete the log.",
            )
        logged = logged_options(query.state())
        options = options_for_query(self._options, logged, query.checkpoint.url)
        return query._replace(options=options)
