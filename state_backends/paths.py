"""Checks paths and contents of objects, before any I/O."""


def check_path(path: str) -> str:
    """Return `path` unchanged when it may name an object, else raise ValueError.

    A path is relative, its parts are separated by one `/`, and no part starts with a dot. That
    excludes `.` and `..`, and leaves hidden names to the stores for their unfinished files.
    """
    if not path:
        raise ValueError("a path must not be empty")
    if "\0" in path or "\\" in path:
        raise ValueError(f"path {path!r} contains a NUL or a backslash")
    for part in path.split("/"):
        if not part:
            raise ValueError(f"path {path!r} is absolute, ends in '/' or has an empty part")
        if part.startswith("."):
            raise ValueError(f"path {path!r} has a part that starts with a dot")
    return path


def is_path(path: str) -> bool:
    """Whether `path` may name an object."""
    try:
        check_path(path)
    except ValueError:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return the folder `prefix` without its closing `/` ("" is everything), or raise ValueError."""
    return check_path(prefix.removesuffix("/")) if prefix else ""


def check_data(path: str, data: bytes) -> bytes:
    """Return `data` unchanged when it may be an object's content, else raise ValueError."""
    if not data:
        raise empty_object(path)
    return data


def empty_object(path: str) -> ValueError:
    """Return the error for an empty object.

    There are none anywhere, because s3fs writes an empty object without the condition that makes
    a create exclusive; and because an empty file is what a crash leaves behind.
    """
    return ValueError(f"object {path!r} would be empty; an object has at least one byte")
