"""The architecture: which packages there are, what each may import, and what an import loads.

Read `PACKAGES` from the bottom layer to the top: a row has a package and the packages that it may import.
They stand in the rows above, so no arrow leads back up, and none goes in a circle. An import that has no
arrow fails here; a change that needs a new arrow adds it to the row. A module may move within its package, or
get another name, without a change of this file.

`pytest -s tests/test_architecture.py -k graph` prints packages, arrows, circles and sizes.
"""

from __future__ import annotations

import ast
import graphlib
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import wal_sink
from wal_sink.target_info import OWN

ROOT = Path(__file__).parents[1]
TOP = ("wal_sink", "state_backends")
LINES = 600
FEW_LINES = 60
"""A module with fewer needs a reason."""

TARGETS = {info.package: info for info in OWN.values()}
ON_SQL = ("targets.postgresql", "targets.sqlalchemy")
IN_DEMO = [name for name, info in TARGETS.items() if find_spec(f"wal_sink.demo.{info.name}")]

PACKAGES = {
    # The bottom layer. `state_backends` stands alone, and can be taken elsewhere: it has no epochs.
    "state_backends": "",
    # The modules beside the packages that import no package. All packages of wal_sink may import them.
    "foundation": "",
    # Values, and what may happen next: pure, see `PURE`.
    "model": "",
    "protocol": "model",
    # The databases. They import neither log nor protocol, so that a target can be written without these.
    "targets": "model",
    **{name: "targets model" for name in TARGETS if name not in ON_SQL},
    "targets.sql": "targets model",
    "targets.postgresql": "targets targets.sql model",
    "targets.sqlalchemy": "targets targets.sql model",
    # What lies in the stores: Spark's checkpoint, and the log beside it, which changes by transitions alone.
    "checkpoint": "model state_backends",
    "wal": "checkpoint protocol model state_backends",
    "configuration": "wal protocol model targets",
    # How far it is. It never connects: no target is in its reach. The budget is decided from the backlog.
    "progress": "wal checkpoint protocol model",
    # The two halves, which meet in the log alone; and what is counted.
    "publish": "progress configuration wal checkpoint protocol model targets state_backends",
    "flush": "progress wal checkpoint protocol model targets",
    "metrics": "progress wal checkpoint",
    # What a start would say, before it; then what drives: an operator at the command line, or Spark.
    "admin": "flush progress configuration wal checkpoint protocol model targets",
    # In a Connect session the handle follows a checkpoint as an operator's command does.
    "spark": "admin publish flush metrics progress configuration wal checkpoint protocol model targets",
    "wal_sink": "spark publish progress",
    # What production does not install: each needs an extra. The command `demo` imports the demo when it runs.
    "testing": "publish flush wal checkpoint targets targets.sql protocol model state_backends",
    "demo": f"wal_sink testing spark publish targets {' '.join(IN_DEMO)} wal model",
    "cli": "demo admin publish metrics progress wal targets",
}

OUTSIDE = {
    **{module: f"{name} demo" for name, info in TARGETS.items() for module in info.client},
    "pyspark": "spark demo",
    "py4j": "spark.internals",  # undocumented names of Spark have one place
    "cassandra": "targets.cassandra demo",
    "prometheus_client": "metrics",
    "sqlalchemy": "targets.sqlalchemy targets.iceberg demo",
    "duckdb": "targets.sqlalchemy",
    "fsspec": "state_backends",
    "numpy": "targets.cassandra testing",
    "pytest": "testing",
    "pandas": "",  # it takes half a second to load, and Arrow does what is needed
}
"""Packages of others, and which of ours may import them. All else runs, and is tested, without them."""

LAZY = {"wal_sink.targets"}
"""Modules that name what lies above them, and load it when it is used."""

PURE = ("model", "protocol")
IMPURE = {
    *("asyncio", "datetime", "fsspec", "io", "os", "pathlib", "random", "secrets", "shutil"),
    *("socket", "state_backends", "subprocess", "tempfile", "threading", "time", "uuid"),
}
"""Where a clock, randomness or a file would come from."""


def modules() -> dict[str, Path]:
    """Return every module that is in the wheel, by its name."""
    result = {}
    for package in TOP:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            result[name.removesuffix(".__init__")] = path
    return result


MODULES = modules()
SIZES = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}


@cache
def imports(module: str) -> frozenset[str]:
    """Return what a module imports, also inside functions; our own modules by their full name."""
    result: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relative to itself"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                result.add(name if name in MODULES else str(node.module))
    return frozenset(result)


def everything(module: str) -> set[str]:
    """Return what a module imports, and what our own modules among that import, and so on."""
    result: set[str] = set()
    remaining = [module]
    while remaining:
        new = imports(remaining.pop()) - result
        result |= new
        remaining += [name for name in new if name in MODULES]
    return result


def tops(names: Iterable[str]) -> set[str]:
    """Return the top-level packages of module names."""
    return {name.partition(".")[0] for name in names}


def full(name: str) -> str:
    """Return the full name for a name of the tables."""
    return name if name in TOP else f"wal_sink.{name}"


def within(module: str, names: Iterable[str]) -> bool:
    """Return True if a module is one of `names`, or lies in one; none lies in `wal_sink`."""
    return any(
        module == full(name) or (name != "wal_sink" and module.startswith(f"{full(name)}."))
        for name in names
    )


@cache
def package(module: str) -> str:
    """Return the package of a module: the innermost row that has it."""
    inside = [name for name in PACKAGES if within(module, [name])]
    beside = module.rpartition(".")[0] == "wal_sink" and MODULES[module].stem != "__init__"
    return max(inside, key=len, default="foundation" if beside else module)


@cache
def arrows() -> dict[tuple[str, str], set[str]]:
    """Return the imports that lead from one package to another, by the two packages."""
    result: dict[tuple[str, str], set[str]] = {}
    for module in MODULES.keys() - LAZY:
        for imported in imports(module) & MODULES.keys():
            ends = package(module), package(imported)
            if ends[0] != ends[1]:
                result.setdefault(ends, set()).add(f"{module} -> {imported}")
    return result


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names on one circle of a graph; an empty list: it has none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def children(parent: str) -> dict[str, set[str]]:
    """Return the graph of what lies directly in a package: its modules, and its packages as a whole."""

    def child(module: str) -> str:
        return module.removeprefix(f"{parent}.").partition(".")[0]

    inside = [module for module in MODULES if module.startswith(f"{parent}.")]
    graph: dict[str, set[str]] = {child(module): set() for module in inside}
    for module in inside:
        near = {child(name) for name in imports(module) if name in inside}
        graph[child(module)] |= near - {child(module)}
    return graph


def importers(outside: str) -> set[str]:
    """Return our modules that import a package of others or something in it."""
    return {
        module
        for module in MODULES
        if any(name == outside or name.startswith(f"{outside}.") for name in imports(module))
    }


def test_reader_of_imports_sees_something() -> None:
    """The other tests would pass on an empty tree, too."""
    assert len(MODULES) > 30
    assert {("flush", "protocol"), ("protocol", "model"), ("protocol", "foundation")} <= {*arrows()}
    assert any(name.startswith("wal_sink.demo") for name in importers("cassandra"))
    assert circle({"a": "b", "b": "c", "c": "a"})
    assert children("wal_sink")["flush"] >= {"protocol", "wal", "errors"}


@pytest.mark.parametrize("name", PACKAGES)
def test_package_imports_what_its_row_says(name: str) -> None:
    """And what lies in the same package, and in the foundation."""
    allowed = PACKAGES[name].split() + ["foundation"] * (
        name not in ("state_backends", "foundation")
    )
    new = [
        result
        for (mine, other), result in arrows().items()
        if mine == name and other not in allowed
    ]
    assert new == []


@pytest.mark.parametrize("name", PACKAGES)
def test_architecture_row_names_only_imports_from_rows_above(name: str) -> None:
    """So the table has no arrow that is not there, none back up, and none in a circle."""
    above = list(PACKAGES)[: list(PACKAGES).index(name)]
    for other in PACKAGES[name].split():
        assert other in above
        assert (name, other) in arrows(), f"{other} is not imported"


def test_every_module_has_a_package() -> None:
    """And no package has the name of a public function, which importing the package would hide."""
    assert {package(module) for module in MODULES} == PACKAGES.keys()
    assert {*wal_sink.__all__, "batch_writer", "check"} & PACKAGES.keys() == set()


@pytest.mark.parametrize("outside", OUTSIDE)
def test_few_import_what_is_not_ours(outside: str) -> None:
    """See `OUTSIDE`."""
    allowed = OUTSIDE[outside].split()
    assert {name for name in importers(outside) if not within(name, allowed)} == set()


def test_pure_modules_reach_no_io() -> None:
    """Neither they nor anything of ours that they import can reach a file, a clock or randomness."""
    modules = [name for name in MODULES if within(name, PURE)]
    assert modules
    assert {name: tops(everything(name)) & IMPURE for name in modules} == {
        name: set() for name in modules
    }


def test_progress_imports_no_target() -> None:
    """`status` and `await_flushed` work with the target down: no flusher and no target in reach."""
    modules = [module for module in MODULES if package(module) == "progress"]
    reach = {package(name) for module in modules for name in everything(module) if name in MODULES}
    assert "wal" in reach
    assert not {name for name in reach if name == "flush" or name.startswith("targets")}


def test_modules_import_without_circles() -> None:
    """Every module can be read after those that it imports; but for the lazy `__init__`."""
    graph = {
        module: {name for name in imports(module) if name in MODULES and name != "wal_sink"}
        for module in MODULES
        if module != "wal_sink"
    }
    for module in graph:  # `from package import submodule` also runs the package
        graph[module] -= {module, module.rpartition(".")[0]}
    assert circle(graph) == []


def test_packages_import_without_circles() -> None:
    """Neither among the modules of one nor among the packages in it, each taken as a whole."""
    for parent in {name.rpartition(".")[0] for name in MODULES} - {""}:
        assert circle(children(parent)) == [], parent


def test_graph_is_printed() -> None:
    """For a reader of `pytest -s`; and it is the one that the table draws."""
    up = [
        ends for ends in arrows() if list(PACKAGES).index(ends[0]) < list(PACKAGES).index(ends[1])
    ]
    graph: dict[str, set[str]] = {name: set() for name in PACKAGES}
    for mine, other in arrows():
        graph[mine].add(other)
    report = []
    for name, others in graph.items():
        lines = [size for module, size in SIZES.items() if package(module) == name]
        counted = f"{len(lines):4} modules {sum(lines):6,} lines"
        report.append(f"{name:20} {counted} -> {' '.join(sorted(others))}")
    small = [module for module, size in SIZES.items() if size < FEW_LINES]
    small = [module for module in small if MODULES[module].stem != "__init__"]
    result = circle(graph)
    ring = f"a circle: {' -> '.join(result)}" if result else "no circle"
    median = statistics.median(SIZES.values())
    report += [
        f"{len(PACKAGES)} packages, {len(arrows())} arrows, {len(up)} of them back up, {ring}",
        f"{len(MODULES)} modules, median {median:.0f} lines, {len(small)} below {FEW_LINES}",
    ]
    sys.stdout.write("\n".join(["", *report, ""]))
    assert (up, result) == ([], [])


def test_every_module_says_what_it_is() -> None:
    """A docstring, a name that means one thing, and a length that can be read at one sitting."""
    vague = {"and", "util", "utils", "helper", "helpers", "manager", "managers", "misc", "common"}
    for module, path in MODULES.items():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{module}: none"
        assert not vague & set(module.replace("_", ".").split(".")), f"{module} says nothing"
        assert SIZES[module] <= LINES, f"{module} has {SIZES[module]} lines"


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


def test_query_is_played_without_spark() -> None:
    """An author of a target needs neither a JVM nor the driver of another database."""
    loaded = loaded_by("import wal_sink.testing.micro_batches")
    assert "wal_sink.flush.flusher" in loaded
    assert tops(loaded) & {"pyspark", "cassandra", "pytest"} == set()


def test_importing_the_data_source_loads_no_driver() -> None:
    """A Python worker that only appends needs Spark and Arrow, and of ours what publishes.

    pyspark itself loads no pandas here.
    """
    loaded = loaded_by("import wal_sink.spark.data_source")
    assert "pyspark" in loaded
    assert tops(loaded) & {"pandas", "cassandra", "prometheus_client", "pytest"} == set()
    assert (
        loaded & {"wal_sink.flush", "wal_sink.metrics", "wal_sink.admin", "wal_sink.testing"}
        == set()
    )


def test_prometheus_is_loaded_when_metrics_are_asked_for() -> None:
    """Not before: a flush reports to `FlushMetrics`, which counts nothing by itself."""
    loaded = loaded_by("import wal_sink.spark.api, wal_sink.cli.main")
    assert "wal_sink.metrics.server" in loaded
    assert "prometheus_client" not in tops(loaded)


def test_public_names_can_be_imported() -> None:
    """What `__all__` promises can be had, and anything else is refused as usual."""
    program = "import wal_sink\nfor name in wal_sink.__all__: getattr(wal_sink, name)"
    assert "wal_sink.spark.handle" in loaded_by(program)
    with pytest.raises(AttributeError, match="nothing"):
        _ = wal_sink.nothing
