"""Reads and writes all of an open file, by its descriptor; a file object of Python doubles the time."""

import os


def content(descriptor: int) -> bytes:
    """Read an open file to its end: with one read, if that brings as much as the file has."""
    size = os.fstat(descriptor).st_size
    parts = [os.read(descriptor, size + 1)]
    while parts[-1] and len(parts[0]) != size:
        parts.append(os.read(descriptor, size + 1))
    return b"".join(parts)


def write(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a new file."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
