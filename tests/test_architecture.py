"""The arrows between modules, read from their source: who may import what, and what an import loads."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import wal_sink

ROOT = Path(__file__).parents[1]
PACKAGES = ("wal_sink", "state_backends")
LINES = 320

SPARK = {
    "wal_sink.spark.data_source",
    "wal_sink.spark.internals",
    "wal_sink.spark.flush_job",
    "wal_sink.spark.spark_loop",
    "wal_sink.spark.listener",
    "wal_sink.spark.api",
    "wal_sink.spark.sink",
    "wal_sink.spark.register",
    "wal_sink.spark.stop_watcher",
    "wal_sink.testing.local_spark",
    "wal_sink.testing.crash.pausing",
    "wal_sink.demo.app",
    "wal_sink.demo.control",
}
PURE = {
    f"wal_sink.{name}"
    for name in (
        *("protocol", "choice", "steps", "manifest", "offsets", "record", "records", "layout"),
        *("remedies", "shadow", "shares", "budget"),
    )
}
IMPURE = {
    *("asyncio", "datetime", "fsspec", "io", "os", "pathlib", "random", "secrets", "shutil"),
    *("socket", "state_backends", "subprocess", "tempfile", "threading", "time", "uuid"),
}
"""Where a clock, randomness or a file would come from."""

TESTING, DEMO = "wal_sink.testing.", "wal_sink.demo."

ROWS = (
    {"spark", "wakeup", "handle", "cli"},
    {"flusher", "publish", "append", "trim", "progress"},
    {"protocol", "segment", "layout", "targets.base", "checkpoint"},
    {"manifest"},
    {"errors"},
)
"""The picture: arrows point to the same row or downwards."""


def modules() -> dict[str, Path]:
    """Return every module that the wheel holds, by its name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def imports(module: str) -> frozenset[str]:
    """Return what a module imports, also inside functions; our own modules by their full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relative to itself"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else str(node.module))
    return frozenset(found)


def everything(module: str) -> set[str]:
    """Return what a module imports, and what our own modules among that import, and so on."""
    found: set[str] = set()
    left = [module]
    while left:
        new = imports(left.pop()) - found
        found |= new
        left += [name for name in new if name in MODULES]
    return found


def tops(names: Iterable[str]) -> set[str]:
    """Return the top-level packages of module names."""
    return {name.partition(".")[0] for name in names}


def importers(package: str) -> set[str]:
    """Return our modules that import `package` or something in it."""
    return {
        module
        for module in MODULES
        if any(name == package or name.startswith(f"{package}.") for name in imports(module))
    }


def test_the_reader_of_imports_sees_something() -> None:
    """The other tests would pass on an empty tree, too."""
    assert "wal_sink.protocol.next_step" in imports("wal_sink.flush.flusher")
    assert "wal_sink.errors" in imports("wal_sink.flush.flusher")
    assert "cassandra.cluster" in imports("wal_sink.testing.cassandra.node")
    assert len(MODULES) > 30


def test_only_the_edge_imports_pyspark() -> None:
    """Everything else runs, and is tested, without a JVM."""
    assert importers("pyspark") <= SPARK
    assert importers("py4j") <= {"wal_sink.spark.internals"}


def test_only_the_target_imports_cassandra() -> None:
    """Another target needs no Cassandra driver."""
    allowed = "wal_sink.targets.cassandra"
    others = {name for name in importers("cassandra") if not name.startswith(f"{allowed}.")}
    assert others <= {"wal_sink.testing.cassandra.node", "wal_sink.demo.control"}
    outside = {name for name in importers(allowed) if not name.startswith((allowed, TESTING))}
    assert outside == set(), "the registry finds it by its name"


@pytest.mark.parametrize("module", sorted(PURE))
def test_what_decides_does_no_io(module: str) -> None:
    """Neither it nor anything of ours that it imports can reach a file, a clock or randomness."""
    assert tops(everything(module)) & IMPURE == set()


def test_state_backends_know_no_epoch() -> None:
    """The package stands alone, and can be taken elsewhere."""
    ours = [name for name in MODULES if name.startswith("state_backends")]
    assert [name for name in ours if "wal_sink" in tops(imports(name))] == []


def test_the_product_does_not_import_what_is_for_tests() -> None:
    """`wal_sink.testing` and `wal_sink.demo` need an extra that production does not install."""
    outside = {m for m in importers("wal_sink.testing") if not m.startswith((TESTING, DEMO))}
    assert outside == set()
    outside = {m for m in importers("wal_sink.demo") if not m.startswith(DEMO)}
    assert outside == {"wal_sink.cli.demo"}, "which imports it when it is called"
    assert {m for m in importers("pytest") if not m.startswith(TESTING)} == set()


def test_who_flushes_knows_no_prometheus() -> None:
    """It reports to a `Observer`; only what answers Prometheus imports its client, and only when asked to."""
    assert importers("prometheus_client") == {
        "wal_sink.metrics.collector",
        "wal_sink.metrics.server",
    }
    reach = everything("wal_sink.flush.flusher") | everything("wal_sink.flush.loop")
    assert "wal_sink.observer" in reach
    assert (
        reach & {"wal_sink.metrics.collector", "wal_sink.metrics.server", "prometheus_client"}
        == set()
    )
    assert "prometheus_client" not in tops(
        loaded_by("import wal_sink.spark.register, wal_sink.cli.main")
    )


def test_nothing_imports_pandas() -> None:
    """It takes half a second to load, and Arrow does what is needed."""
    assert importers("pandas") == set()


def test_who_reads_progress_never_connects() -> None:
    """`status` and `await_flushed` work with the target down: no flusher and no target in reach."""
    reach = everything("wal_sink.progress.status")
    assert "wal_sink.flush.flusher" not in reach
    assert {name for name in reach if name.startswith("wal_sink.targets.")} <= {
        "wal_sink.targets.base"
    }


def test_arrows_point_downwards() -> None:
    """Nothing imports what the picture draws above it."""
    row = {f"wal_sink.{name}": number for number, names in enumerate(ROWS) for name in names}
    upwards = [
        (module, name)
        for module in MODULES.keys() & row.keys()
        for name in imports(module) & row.keys()
        if row[name] < row[module]
    ]
    assert upwards == []


def test_there_are_no_cycles() -> None:
    """Every module can be read after those that it imports; the lazy `__init__` aside."""
    graph = {
        module: {name for name in imports(module) if name in MODULES and name != "wal_sink"}
        for module in MODULES
        if module != "wal_sink"
    }
    for module in graph:  # `from package import submodule` also runs the package
        graph[module] -= {module, module.rpartition(".")[0]}
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_module_is_small_and_says_what_it_is(module: str) -> None:
    """A docstring, a name that means something, and a length that can be read at one sitting."""
    text = MODULES[module].read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{module} has no docstring"
    vague = {"util", "utils", "helper", "helpers", "manager", "managers", "misc", "common"}
    assert not vague & set(module.replace("_", ".").split(".")), f"{module} says nothing"
    assert len(text.splitlines()) <= LINES, f"{module} has {len(text.splitlines())} lines"


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after a statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_next_to_nothing() -> None:
    """A task, or a reader of errors, pays neither for Spark nor for a driver."""
    loaded = loaded_by("import wal_sink")
    assert "wal_sink.errors" in loaded
    assert tops(loaded) & {"pyspark", "pandas", "cassandra", "pytest"} == set()
    assert "wal_sink.testing" not in loaded


def test_importing_the_data_source_loads_no_driver() -> None:
    """A Python worker that only appends needs Spark and Arrow; pyspark itself loads no pandas here."""
    loaded = loaded_by("import wal_sink.spark.data_source")
    assert "pyspark" in loaded
    assert tops(loaded) & {"pandas", "cassandra", "pytest"} == set()
    assert "wal_sink.testing" not in loaded


def test_every_public_name_is_found_lazily() -> None:
    """What `__all__` promises can be had, and anything else is refused as usual."""
    program = "import wal_sink\nfor name in wal_sink.__all__: getattr(wal_sink, name)"
    assert "wal_sink.spark.sink" in loaded_by(program)
    with pytest.raises(AttributeError, match="nothing"):
        _ = wal_sink.nothing
