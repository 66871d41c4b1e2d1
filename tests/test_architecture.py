"""The architecture: which rooms there are, what each may import, and what an import loads.

A room is a package, or a module that lies beside packages. Read `ROOMS` from the ground to the roof: a row
has a room and what that room may import. All of it stands in the rows above, so no arrow leads back up,
and none goes in a circle. An import that has no arrow fails here; who needs a new one adds it to its row.
"""

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

ROOMS = {
    # The ground. `state_backends` stands alone, and can be taken elsewhere: it knows no epoch.
    "state_backends": "",
    "clock": "",
    "counted": "",
    "log_context": "",
    "observer": "",
    "arrow_batches": "",
    "errors": "",
    "remedies": "",
    "option_words": "",
    "options": "option_words errors",
    # Values, and what may happen next: pure, see `PURE`. `remedies` has the commands that errors name.
    "model": "errors remedies",
    "protocol": "model errors remedies counted",
    # The databases. They know neither the log nor the protocol, so that a target can be written without them.
    "targets": "model options observer errors",
    "targets.values": "targets.operations model errors",
    ".names": "targets.names errors",
    ".types": ".names targets.values model options errors",
    ".encode": ".types targets.values model",
    ".times": ".encode .types targets.values targets.unwritten model clock errors",
    ".totals": ".encode .types model errors",
    ".row_options": ".times .totals .types targets.operations targets.tables options errors",
    ".options": ".row_options .totals .times .names options errors",
    ".check": ".times .types targets.values model clock errors",
    ".check_tables": ".check .types targets.values model errors",
    ".driver": ".options .totals targets.base options log_context errors",
    ".schema": ".driver .totals .times .types .options .names targets.elsewhere targets.operations"
    " targets.tables model log_context errors",
    ".write": ".schema .totals .times .encode .driver .types .options .names targets.values targets.refused"
    " targets.base model arrow_batches observer log_context counted errors",
    ".ledger": ".schema .driver .names model errors",
    ".session": ".ledger .write .schema .driver .options .names targets.refused targets.base model"
    " observer errors",
    ".target": ".session .check_tables .schema .driver .totals .options .types .names targets.operations"
    " targets.base model options",
    "targets.cassandra": ".target .options",
    "targets.sql": "targets.elsewhere targets.names targets.values targets.base model options errors",
    "targets.kafka": "targets.elsewhere targets.extras targets.base model options errors",
    "targets.delta": "targets.elsewhere targets.extras targets.names targets.base model options errors",
    "targets.postgresql": "targets.sql targets.extras targets.names targets.values targets.operations"
    " targets.unwritten targets.base model options errors",
    # What lies in the stores: Spark's checkpoint, and the log beside it. The log knows no target.
    "checkpoint": "model state_backends errors",
    "wal": "checkpoint model state_backends log_context errors remedies",
    "configuration": "wal model targets options errors",
    # How far it is. It never connects: no target is in its reach. The budget is decided from what waits.
    "progress": "wal checkpoint protocol model state_backends clock counted errors",
    # The two halves, which meet in the log alone; and what is counted.
    "publish": "progress configuration wal checkpoint protocol model targets.base state_backends"
    " arrow_batches clock counted errors",
    "flush": "progress wal checkpoint protocol model targets.base targets.refused targets.offered"
    " state_backends observer log_context clock counted errors remedies",
    "metrics": "progress wal checkpoint model observer clock errors",
    # Who drives: an operator at the command line, or Spark.
    # What a start would say, before it; two doors lead to it.
    "preflight": "publish configuration model",
    "admin": "flush progress configuration wal checkpoint protocol model targets.refused targets.compared"
    " targets.base options state_backends observer log_context clock counted errors remedies",
    "spark": "preflight publish flush metrics progress configuration wal checkpoint protocol model"
    " targets.base options observer state_backends log_context remedies clock counted errors",
    "wal_sink": "spark preflight progress errors",
    # What production does not install: each needs an extra. `cli.demo` imports the demo when it is called.
    "testing": "spark publish targets state_backends model arrow_batches observer clock errors",
    "demo": "wal_sink testing wal model errors",
    "cli": "demo admin preflight metrics progress wal model targets.base state_backends clock counted errors",
}

OUTSIDE = {
    "pyspark": "spark testing.local_spark testing.crash.pausing demo",
    "py4j": "spark.internals",  # undocumented names of Spark have one place
    "cassandra": "targets.cassandra testing.cassandra.node demo.cassandra",
    "prometheus_client": "metrics",
    "psycopg": "targets.postgresql.connection testing.postgresql.server demo.postgresql",
    "pgpq": "targets.postgresql.copy",
    "sqlglot": "admin.spark_schema",
    "confluent_kafka": "targets.kafka testing.kafka.broker",
    "deltalake": "targets.delta",
    "fsspec": "state_backends",
    "numpy": "targets.cassandra testing.cell_times testing.cell_totals",
    "pytest": "testing",
    "pandas": "",  # it takes half a second to load, and Arrow does what is needed
}
"""Packages of others, and what may import them. Everything else runs, and is tested, without them."""

PURE = ("counted", "errors", "remedies", "model", "protocol")
IMPURE = {
    *("asyncio", "datetime", "fsspec", "io", "os", "pathlib", "random", "secrets", "shutil"),
    *("socket", "state_backends", "subprocess", "tempfile", "threading", "time", "uuid"),
}
"""Where a clock, randomness or a file would come from."""


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


def full(name: str) -> str:
    """Return the full name for a name of the tables."""
    if name.startswith("."):
        return f"wal_sink.targets.cassandra{name}"
    return name if name in PACKAGES else f"wal_sink.{name}"


def within(module: str, names: Iterable[str]) -> bool:
    """Whether a module is one of `names`, or lies in one; none lies in `wal_sink`."""
    return any(
        module == full(name) or (name != "wal_sink" and module.startswith(f"{full(name)}."))
        for name in names
    )


def room(module: str) -> str:
    """Return the room of a module: the innermost that has it."""
    inside = [name for name in ROOMS if within(module, [name])]
    return max(inside, key=lambda name: len(full(name)), default=module)


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
    assert "wal_sink.errors" in everything("wal_sink.flush.flusher")
    assert "cassandra.cluster" in imports("wal_sink.testing.cassandra.node")
    assert len(MODULES) > 30


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_what_its_row_says(name: str) -> None:
    """And what lies in the same room."""
    new = {
        f"{module} -> {imported}"
        for module in MODULES
        if room(module) == name
        for imported in imports(module)
        if imported in MODULES and room(imported) != name
        if not within(imported, ROOMS[name].split())
    }
    assert new == set()


@pytest.mark.parametrize("name", ROOMS)
def test_a_row_names_what_is_imported_and_stands_above_it(name: str) -> None:
    """So the table has no arrow that is not there, none back up, and none in a circle."""
    above = list(ROOMS)[: list(ROOMS).index(name)]
    used = {
        imported
        for module in MODULES
        if room(module) == name
        for imported in imports(module)
        if imported in MODULES
    }
    for other in ROOMS[name].split():
        assert room(full(other)) in above
        assert any(within(imported, [other]) for imported in used), f"{other} is not imported"


def test_every_module_has_a_room() -> None:
    """And no room has the name of a public function, which importing the room would hide."""
    assert {room(module) for module in MODULES} == ROOMS.keys()
    assert {*wal_sink.__all__, "batch_writer", "check"} & ROOMS.keys() == set()


@pytest.mark.parametrize("package", OUTSIDE)
def test_few_import_what_is_not_ours(package: str) -> None:
    """See `OUTSIDE`."""
    outside = {name for name in importers(package) if not within(name, OUTSIDE[package].split())}
    assert outside == set()


@pytest.mark.parametrize("module", sorted(name for name in MODULES if within(name, PURE)))
def test_what_decides_does_no_io(module: str) -> None:
    """Neither it nor anything of ours that it imports can reach a file, a clock or randomness."""
    assert tops(everything(module)) & IMPURE == set()


def test_who_reads_progress_never_connects() -> None:
    """`status` and `await_flushed` work with the target down: no flusher and no target in reach."""
    reach = {room(name) for name in everything("wal_sink.progress.status") if name in MODULES}
    assert "wal" in reach
    assert not {name for name in reach if name == "flush" or name.startswith("targets")}


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
    """A docstring, a name that means one thing, and a length that can be read at one sitting."""
    text = MODULES[module].read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{module} has no docstring"
    vague = {"and", "util", "utils", "helper", "helpers", "manager", "managers", "misc", "common"}
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
    """Not before: a flush reports to an `Observer`, which counts nothing by itself."""
    loaded = loaded_by("import wal_sink.spark.register, wal_sink.cli.main")
    assert "wal_sink.metrics.server" in loaded
    assert "prometheus_client" not in tops(loaded)


def test_every_public_name_is_found_lazily() -> None:
    """What `__all__` promises can be had, and anything else is refused as usual."""
    program = "import wal_sink\nfor name in wal_sink.__all__: getattr(wal_sink, name)"
    assert "wal_sink.spark.sink" in loaded_by(program)
    with pytest.raises(AttributeError, match="nothing"):
        _ = wal_sink.nothing
