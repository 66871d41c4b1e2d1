"""When Spark completed the checkpoint of an epoch: from here on its rows ought to be visible."""

from __future__ import annotations

from wal_sink.local_folder import local_folder


def committed_us(url: str, epoch: int, published_us: int) -> int:
    """Return when `commits/<epoch>` was written, in microseconds since 1970.

    Of a checkpoint in an object store, where each look costs a request, and of a file that Spark has
    purged since: when the manifest was published, some 0.1 s earlier.

    :param url: the checkpoint.
    """
    folder = local_folder(url)
    if folder is None:
        return published_us
    try:
        written = (folder / "commits" / str(epoch)).stat().st_mtime_ns // 1_000
    except OSError:
        return published_us
    return max(written, published_us)  # clocks of file systems tick in steps of up to 10 ms
