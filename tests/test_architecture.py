"""The architecture: which packages there are, what each may import, and what an import loads.

Read `PACKAGES` from the bottom layer to the top. A row has a package and the packages that it may import,
which are in rows above. So there are no circles. A change that needs another import adds it to the row. A
module may move within its package, or get another name, without a change of this file.

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
from wal_sink.builtin_targets import BUILTIN

ROOT = Path(__file__).parents[1]
TOP = ("wal_sink", "state_backends")
LINES = 600
FEW_LINES = 60
"""A module with fewer lines needs a reason."""

TARGETS = {info.package: info for info in BUILTIN.values()}
IN_DEMO = [name for name, info in TARGETS.items() if find_spec(f"wal_sink.demo.{info.name}")]

PACKAGES = {
    # The bottom layer. `state_backends` imports nothing of wal_sink, so that other projects can use it.
    "state_backends": "",
    # The modules beside the packages that import no package. Every package of wal_sink may import them.
    "foundation": "",
    # Values and transitions: pure, see `PURE`.
    "model": "",
    "protocol": "model",
    # The databases. They import neither log nor protocol, which an author of a target need not know.
    "targets": "model",
    "targets.sql": "targets model",
    **dict.fromkeys(TARGETS, "targets targets.sql model"),
    # The contents of the stores: Spark's checkpoint, and the log.
    "checkpoint": "model state_backends",
    "wal": "checkpoint protocol model state_backends",
    "configuration": "wal protocol model targets",
    # The progress of a flush. It imports no target, so it never connects.
    "progress": "wal checkpoint protocol model",
    # The two halves, which have only the log in common; and the metrics.
    "publish": "progress configuration wal checkpoint protocol model targets state_backends",
    "flush": "progress wal checkpoint protocol model targets",
    "metrics": "progress wal checkpoint",
    # The two drivers: an operator at the command line, and Spark.
    "admin": "flush progress configuration wal checkpoint protocol model targets",
    # In a Connect session, the handle follows a checkpoint as an operator's command does.
    "spark": "admin publish flush metrics progress configuration wal checkpoint model targets",
    "wal_sink": "spark publish progress",
    # Packages that need an extra. The command `demo` imports the demo when it runs.
    "testing": "publish flush wal checkpoint targets targets.sql protocol model state_backends",
    "demo": f"wal_sink testing spark publish targets {' '.join(IN_DEMO)} wal model",
    "cli": "demo admin publish metrics progress wal targets",
}

OUTSIDE = {
    **{module: f"{name} demo" for name, info in TARGETS.items() for module in info.client},
    "pgpq": "targets.postgresql",
    "pyiceberg_core": "",  # only pyiceberg imports it
    "pyspark": "spark demo",
    "py4j": "spark.internals",  # undocumented names of Spark have one place
    "cassandra": "targets.cassandra demo",
    "prometheus_client": "metrics",
    "sqlalchemy": "targets.sqlalchemy targets.iceberg demo",
    "duckdb": "targets.sqlalchemy",
    "fsspec": "state_backends",
    "numpy": "targets.cassandra",
    "pytest": "testing",
    "pandas": "",  # it takes half a second to load, and Arrow does what is needed
}
"""Packages of others, and which of ours may import them."""

LAZY = {"wal_sink.targets"}
"""Modules that import from a higher layer when a name is used."""

PURE = ("model", "protocol")
IMPURE = {
    *("asyncio", "datetime", "fsspec", "io", "os", "pathlib", "random", "secrets", "shutil"),
    *("socket", "state_backends", "subprocess", "tempfile", "threading", "time", "uuid"),
}
"""Modules that give access to a clock, to randomness or to files."""


def modules() -> dict[str, Path]:
    """Return every module of the wheel, by its name."""
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
    """Return the imports of a module, also inside functions; our own modules by their full name."""
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
    """Return the direct and indirect imports of a module."""
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
    """Return the full name of a package of the tables."""
    return name if name in TOP else f"wal_sink.{name}"


def within(module: str, names: Iterable[str]) -> bool:
    """Return True if a module is one of `names`, or in a package of `names` other than `wal_sink` itself."""
    return any(
        module == full(name) or (name != "wal_sink" and module.startswith(f"{full(name)}."))
        for name in names
    )


@cache
def package(module: str) -> str:
    """Return the package of a module: the innermost one with a row."""
    inside = [name for name in PACKAGES if within(module, [name])]
    beside = module.rpartition(".")[0] == "wal_sink" and MODULES[module].stem != "__init__"
    return max(inside, key=len, default="foundation" if beside else module)


@cache
def arrows() -> dict[tuple[str, str], set[str]]:
    """Return the imports from one package to another, by the two packages."""
    result: dict[tuple[str, str], set[str]] = {}
    for module in MODULES.keys() - LAZY:
        for imported in imports(module) & MODULES.keys():
            ends = package(module), package(imported)
            if ends[0] != ends[1]:
                result.setdefault(ends, set()).add(f"{module} -> {imported}")
    return result


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names on a circle of a graph; empty if it has none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def importers(outside: str) -> set[str]:
    """Return our modules that import a package of others."""
    return {
        module
        for module in MODULES
        if any(name == outside or name.startswith(f"{outside}.") for name in imports(module))
    }


def test_reader_of_imports_finds_known_imports() -> None:
    """On an empty tree the other tests would pass."""
    assert len(MODULES) > 30
    assert {("flush", "protocol"), ("protocol", "model"), ("protocol", "foundation")} <= {*arrows()}
    assert any(name.startswith("wal_sink.demo") for name in importers("cassandra"))
    assert circle({"a": "b", "b": "c", "c": "a"})


@pytest.mark.parametrize("name", PACKAGES)
def test_package_imports_only_the_packages_of_its_row(name: str) -> None:
    """Every package may also import itself and the foundation."""
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
    """So the table has no unused import, and no circle. The targets share one row."""
    above = list(PACKAGES)[: list(PACKAGES).index(name)]
    for other in PACKAGES[name].split():
        assert other in above
        assert name in TARGETS or (name, other) in arrows(), f"{other} is not imported"


def test_every_module_has_a_package() -> None:
    """No package has the name of a public function: its import would hide the function."""
    assert {package(module) for module in MODULES} == PACKAGES.keys()
    assert {*wal_sink.__all__, "batch_writer", "check"} & PACKAGES.keys() == set()


@pytest.mark.parametrize("outside", OUTSIDE)
def test_third_party_package_is_imported_only_where_allowed(outside: str) -> None:
    """A row must not allow an import that is not there."""
    allowed = OUTSIDE[outside].split()
    assert {name for name in importers(outside) if not within(name, allowed)} == set()
    used = {
        name for name in allowed if any(within(module, [name]) for module in importers(outside))
    }
    assert used == {*allowed}


def test_pure_modules_reach_no_io() -> None:
    """The indirect imports count, too."""
    modules = [name for name in MODULES if within(name, PURE)]
    assert modules
    assert {name: tops(everything(name)) & IMPURE for name in modules} == {
        name: set() for name in modules
    }


def test_progress_imports_no_target() -> None:
    """`status` and `await_flushed` work with the target down."""
    modules = [module for module in MODULES if package(module) == "progress"]
    reach = {package(name) for module in modules for name in everything(module) if name in MODULES}
    assert "wal" in reach
    assert not {name for name in reach if name == "flush" or name.startswith("targets")}


def test_modules_import_without_circles() -> None:
    """The lazy `wal_sink/__init__.py` does not count."""
    graph = {
        module: {name for name in imports(module) if name in MODULES and name != "wal_sink"}
        for module in MODULES
        if module != "wal_sink"
    }
    for module in graph:  # `from package import submodule` also runs the package
        graph[module] -= {module, module.rpartition(".")[0]}
    assert circle(graph) == []


def test_packages_import_lower_layers_in_no_circle() -> None:
    """`pytest -s` shows the graph. It has no circle, and no import of a higher layer."""
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


def test_every_module_has_docstring_name_and_bounded_length() -> None:
    vague = {"and", "util", "utils", "helper", "helpers", "manager", "managers", "misc", "common"}
    for module, path in MODULES.items():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{module}: none"
        assert not vague & set(module.replace("_", ".").split(".")), f"{module} says nothing"
        assert SIZES[module] <= LINES, f"{module} has {SIZES[module]} lines"


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "loads", "not_loaded"),
    [
        ("import wal_sink", "wal_sink.errors", "pyspark pandas cassandra pytest wal_sink.testing"),
        # The tests of a target need neither a JVM nor the driver of another database.
        (
            "import wal_sink.testing.micro_batches",
            "wal_sink.flush.flusher",
            "pyspark cassandra pytest",
        ),
        # A Python worker that only appends needs Spark, Arrow, and the modules that publish.
        (
            "import wal_sink.spark.data_source",
            "pyspark",
            "pandas cassandra pytest wal_sink.flush wal_sink.metrics wal_sink.admin wal_sink.testing",
        ),
        # Without metrics, a flush reports to `FlushMetrics`, which ignores the events.
        (
            "import wal_sink.spark.api, wal_sink.cli.main",
            "wal_sink.metrics.server",
            "prometheus_client",
        ),
    ],
)
def test_import_loads_only_what_it_needs(statement: str, loads: str, not_loaded: str) -> None:
    loaded = loaded_by(statement)
    assert loads in loaded
    assert loaded & {*not_loaded.split()} == set()


def test_public_names_can_be_imported() -> None:
    """Each name of `__all__` can be imported; another name raises AttributeError."""
    program = "import wal_sink\nfor name in wal_sink.__all__: getattr(wal_sink, name)"
    assert "wal_sink.spark.api" in loaded_by(program)
    with pytest.raises(AttributeError, match="nothing"):
        _ = wal_sink.nothing
