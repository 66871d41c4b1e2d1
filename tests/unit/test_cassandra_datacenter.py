"""Which datacenter is the local one."""

from __future__ import annotations

import pytest

from wal_sink.errors import OptionError
from wal_sink.targets.cassandra.driver.connection import choose_datacenter


def test_the_only_one_needs_no_name() -> None:
    """Most clusters have one."""
    assert choose_datacenter("", {"dc1"}) == "dc1"
    assert choose_datacenter("dc2", {"dc1", "dc2"}) == "dc2"


@pytest.mark.parametrize(
    ("wanted", "known", "says"),
    [
        ("", {"east", "west"}, "2 datacenters: east, west"),
        ("East", {"east", "west"}, "Use one of east, west"),
        ("dc1", set(), "does not have"),
        ("", set(), "0 datacenters"),
    ],
)
def test_otherwise_it_is_asked_for(wanted: str, known: set[str], says: str) -> None:
    """The error lists what there is."""
    with pytest.raises(OptionError, match=says) as refused:
        choose_datacenter(wanted, known)
    assert "cassandra.localDatacenter" in str(refused.value)
