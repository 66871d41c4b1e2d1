"""Lets Spark's Python workers import the installed pyspark, in place of Spark's archive of it.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of its Python daemons. The archive has only
sources, so each daemon and each worker compiles what it imports. If Spark runs from a pyspark that pip has
installed, the same files are beside the archive, compiled.

Python imports the first module called `sitecustomize` on its path before all others. `register` puts this
folder on the path of the session's workers only. This module then runs the `sitecustomize` that it hides.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

ARCHIVE = Path("python", "lib", "pyspark.zip")
"""The archive, below the folder of an installed pyspark, which is also Spark's home."""


def leave_archive_out() -> None:
    """Remove the archive from the path, if the next pyspark on the path is the package that contains it."""
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
    """Run the module `sitecustomize` that Python would have imported without this one."""
    here = Path(__file__).parent
    hidden = PathFinder.find_spec(__name__, [entry for entry in sys.path if Path(entry) != here])
    if hidden is not None and hidden.loader is not None:
        module = importlib.util.module_from_spec(hidden)
        sys.modules[__name__] = module
        hidden.loader.exec_module(module)


leave_archive_out()
run_hidden()
