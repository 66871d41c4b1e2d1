"""Flushes queries until it is told to end, those that begin later, too: `wal-sink flush --follow`.

A `Follower` refreshes its list of queries again and again. It starts a flusher for each target of a query,
starts them again when a new run has other options, and stops them when the log is gone. Two processes may
follow the same logs: they are flushers as any.

With `--under`, an operator's options are for all queries below a place, and a log says where its query
connects. So a log whose options name another database than the operator's is refused, and so is a checkpoint
that is not below the places that the operator named (see `admin.confirm` for the rest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from wal_sink.admin.confirm import fitting
from wal_sink.admin.flush import FlushDone, HostedFlusher, Wait, Watch
from wal_sink.admin.query import Query, find_query, logged_options
from wal_sink.configuration import storage_options
from wal_sink.errors import OptionError, WalSinkError, WrongOwner, stand_in
from wal_sink.options import SinkOptions, parse
from wal_sink.text import printable
from wal_sink.wal.discovery import LogPlace, logs_below, named_checkpoint, open_root
from wal_sink.wal.location import store_errors

REFRESH_S, REFRESH_BILLED_S = 2.0, 60.0
"""How often the list of queries is read; the second one where a request is paid for."""


class Candidate(NamedTuple):
    """A query that may have something to flush."""

    place: str
    """URL of its log or its checkpoint, by which it is known."""
    open: Callable[[], Query]
    """Finds it; raises a `WalSinkError` that says why it cannot be flushed yet."""


Find = Callable[[], Iterable[Candidate]]


class _Followed(NamedTuple):
    """A query whose flushers run."""

    query_id: str
    options: Mapping[str, str]
    """Those of the run."""
    flushers: Sequence[HostedFlusher]


class Follower:
    """Flushes each query that it finds. One thread uses it.

    :param find: returns what there is now; called at each refresh.
    :param say: called with what changes, a line each.
    :param watch: makes what counts for metrics; None: nothing is counted.
    :param target: name of the only target to flush; empty: all.
    :param billed: True if each request to the store of the logs is paid for.
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
        self._done: dict[tuple[str, str], FlushDone] = {}

    def run(self, wait: Wait) -> list[FlushDone]:
        """Refresh and flush until `wait` ends it; return what was flushed, by query and target."""
        try:
            self.refresh()
            while not wait(self._period_s):
                self.refresh()
        finally:
            for followed in self._followed.values():
                for flusher in followed.flushers:
                    flusher.stop()
            for place in list(self._followed):
                self._end(place)
        return list(self._done.values())

    def refresh(self) -> None:
        """Start flushers of what is new, and end those of what is gone."""
        try:
            candidates = {candidate.place: candidate for candidate in self._find()}
        except (OSError, WalSinkError) as error:
            self._complain("", error)
            return
        self._complaints.pop("", None)
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
        """Start the flushers of a query, unless they run with the options that it has.

        :raises WalSinkError: it cannot be flushed for now.
        """
        followed, query = self._followed.get(candidate.place), candidate.open()
        state = query.own_state()
        options = logged_options(state)
        if followed is not None:
            is_same = followed[:2] == (query.query_id, options)
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
        """End the flushers of a query; what they did counts."""
        followed = self._followed.pop(place)
        for flusher in followed.flushers:
            flusher.stop()
        for flusher in followed.flushers:
            try:
                done = flusher.end()
            except (OSError, WalSinkError) as error:
                self._complain(place, error)
                continue
            earlier = self._done.get((done.query_id, done.target))
            if earlier is not None:
                sums = ("epochs", "rows", "bytes", "seconds")
                added = {name: getattr(earlier, name) + getattr(done, name) for name in sums}
                done = msgspec.structs.replace(done, **added)
            self._done[done.query_id, done.target] = done

    def _complain(self, place: str, error: Exception) -> None:
        """Say once why a query is not flushed; it is tried again at each refresh."""
        text = error.one_line if isinstance(error, WalSinkError) else repr(error)
        if self._complaints.get(place) != text:
            self._complaints[place] = text
            self._say(f"{place or 'The logs'}: not flushed for now. {text}")


def at_checkpoint(checkpoint: str, wal: str | None, options: Mapping[str, str]) -> Candidate:
    """Return one query, which may begin later.

    :param wal, options: as for `find_query`.
    """
    return Candidate(checkpoint, partial(find_query, checkpoint, wal, options))


class LogsUnder:
    """Finds every query that has its log below one of several places.

    :param urls: folders, or prefixes of buckets.
    :param options: those of an operator, for all queries.
    :raises OptionError: a place cannot be opened.
    """

    def __init__(self, urls: Sequence[str], options: Mapping[str, str]) -> None:
        self._options = options
        # No checkpoint is known yet, and the storage options do not depend on one.
        self._of_store = storage_options(
            parse({**options, "checkpointLocation": urls[0]}, SinkOptions)
        )[0]
        try:
            self._roots = [open_root(url, self._of_store) for url in urls]
        except OSError as error:
            raise OptionError(
                f"{', '.join(urls)} cannot be searched for logs: {error}.",
                "Give folders, or s3://bucket/prefix, gs://bucket/prefix or abfss://….",
            ) from error
        self.billed = any(root.billed for root in self._roots)
        """True if each request is paid for."""

    def __call__(self) -> Iterator[Candidate]:
        """Yield each query; one that lies below two of the places is yielded twice, under one name."""
        with store_errors("A place that --under names"):
            places = [place for root in self._roots for place in logs_below(root)]
        for place in places:
            yield Candidate(place.url, partial(self._open, place))

    def _open(self, place: LogPlace) -> Query:
        """Find the query of a log by the checkpoint that the log names.

        :raises WrongOwner: the checkpoint is another query's, or does not lie below the places.
        :raises OptionError: nothing was published yet, or the options do not fit the log.
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
                f"The log {place.url} names the checkpoint {checkpoint}, which is that of query"
                f" {query.query_id} now: it was deleted and made again.",
                f"The epochs that are pending in this log are not flushed: `commits/` is gone."
                f" {stand_in(place.url, 'LAST')} If nobody needs the rows, delete the log.",
            )
        fit = fitting(self._options, logged_options(query.state()), query.checkpoint.url)
        return query._replace(options=fit)
