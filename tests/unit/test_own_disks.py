"""Which folders no other host changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from state_backends import LocalBackend
from state_backends.local import is_on_own_disk

OWN = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"}


def kind_of(folder: Path) -> str:
    """Return what the kernel's list of mounts says: the longest mount point above it, the last of equals."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        if folder.is_relative_to(point):
            found.append((len(point.parts), after.split()[0]))
    longest = max(length for length, _ in found)
    return [kind for length, kind in found if length == longest][-1]


@pytest.mark.parametrize("folder", ["/proc/self", "/sys/kernel", "/dev/shm"])
def test_a_folder_is_of_the_kind_that_the_list_of_mounts_says(folder: str) -> None:
    """Only disks count; what the kernel makes up, like what other hosts have, does not."""
    assert is_on_own_disk(folder) == (kind_of(Path(folder)) in OWN)


def test_a_folder_that_is_missing_is_where_it_would_be(tmp_path: Path) -> None:
    """And a link is where it leads to."""
    mine = kind_of(tmp_path.resolve()) in OWN
    assert is_on_own_disk(str(tmp_path / "not" / "there")) == mine
    link = tmp_path / "link"
    link.symlink_to("/proc/self")
    assert not is_on_own_disk(f"{link}/")
    assert not is_on_own_disk("/proc/self/not/there")


@pytest.mark.parametrize("own", [True, False])
def test_a_fresh_listing_makes_a_name_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """By the names that are opened to be made."""
    backend, made = LocalBackend(tmp_path), list[str]()
    backend.create("m/1", b"x")
    monkeypatch.setattr(LocalBackend, "_is_own", lambda *_: own)
    opened = os.open

    def note(path: str, flags: int, *args: int, **kwargs: int) -> int:
        if flags & os.O_CREAT:
            made.append(path)
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", note)
    assert backend.list_fresh("m/") == ["m/1"]
    assert len(made) == (0 if own else 1)
