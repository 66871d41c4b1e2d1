"""Lets Spark's Python workers import the pyspark that is installed, in place of Spark's archive of it.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of its Python daemons. It has sources only,
so each daemon and each worker compiles what it imports. Where Spark runs from a pyspark that pip has
installed, the same files lie compiled beside the archive.

Python imports a module of this name before all others, wherever on its path it finds one. `register` puts the
folder of this one on the path of the session's workers, and on no other path. A module of this name that is
hidden so is run in its turn.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

ARCHIVE = Path("python", "lib", "pyspark.zip")
"""In the folder of the package pyspark, which then is what Spark calls its home."""


def leave_archive_out() -> None:
    """Take the archive off the path, where what is imported then is the package in which it lies."""
    for entry in sys.path:
        archive = Path(entry)
        if archive.parts[-3:] != ARCHIVE.parts:
            continue
        others = [other for other in sys.path if other != entry]
        spec = PathFinder.find_spec("pyspark", others)
        if spec is None or spec.origin is None:
            continue
        beside = Path(spec.origin).parent / ARCHIVE
        if beside.exists() and beside.samefile(archive):
            sys.path[:] = others
            return


def run_hidden() -> None:
    """Run the module that Python would have imported without this one."""
    here = Path(__file__).parent
    hidden = PathFinder.find_spec(__name__, [entry for entry in sys.path if Path(entry) != here])
    if hidden is not None and hidden.loader is not None:
        module = importlib.util.module_from_spec(hidden)
        sys.modules[__name__] = module
        hidden.loader.exec_module(module)


leave_archive_out()
run_hidden()
