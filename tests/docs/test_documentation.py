"""The documentation compared with the code.

Generated parts are compared, too.
"""

from __future__ import annotations

import ast
import html
import pkgutil
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest
import typer

import wal_sink
from docs.tooling.reference import GENERATED, error_kinds, explanation, filled
from tests.cli.test_screens import STATUS
from tests.support.quickstart import EXAMPLE, PAGE, README, quick_start
from wal_sink.builtin_targets import BUILTIN
from wal_sink.cli.main import app
from wal_sink.errors import EXIT_CODES, WalSinkError
from wal_sink.options import Options, SinkOptions, names
from wal_sink.progress.status import status_lines
from wal_sink.targets.registry import installed, target_type

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (path.relative_to(ROOT) for path in ROOT.glob("**/*.md"))
    if page.parts[0] != "build" and not any(part.startswith(".") for part in page.parts)
)
MONITOR = Path("docs", "monitor.md")
PROTOCOL = Path("docs", "protocol")

COMMANDS = typer.main.get_group(app).commands
DECLARED: tuple[type[Options], ...] = (
    SinkOptions,
    *(target_type(name).options_type for name in installed()),
)


@cache
def text(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: Path, heading: str) -> str:
    """Return the text below a heading of the second level."""
    match = re.search(
        rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text(page), re.MULTILINE | re.DOTALL
    )
    assert match, f"{page} has no section {heading}"
    return match[1]


def rows(table: str) -> list[list[str]]:
    """Return the cells of all tables, row by row."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("name", GENERATED)
def test_reference_has_its_generated_part_of_today(name: str) -> None:
    page = text(Path("docs", "reference", f"{name}.md"))
    assert f"<!-- generated: {name} -->" in page
    if filled(page) != page:
        pytest.fail("Run `python -m docs.tooling.reference`, and commit the pages.", pytrace=False)


def test_reference_has_all_options_commands_errors_and_functions() -> None:
    pages = {name: make() for name, make in GENERATED.items()}
    options = rows(pages["options"])
    assert [quoted(row[0])[0] for row in options if row[0] not in ("option", "---")] == [
        name for struct in DECLARED for name in names(struct)
    ]
    assert all(cell for row in options for cell in row)
    assert re.findall(r"^### wal-sink ([\w-]+)$", pages["commands"], re.MULTILINE) == [*COMMANDS]
    for command in COMMANDS.values():
        for parameter in command.params:
            assert all(flag in pages["commands"] for flag in parameter.opts if flag[:2] == "--")
    for kind in error_kinds():
        assert f"## {kind.__name__}\n\nExit code {kind.exit_code}." in pages["errors"]
    for name in wal_sink.__all__:
        assert not name[0].islower() or f"### wal_sink.{name}\n" in pages["python"], name


@pytest.mark.parametrize("kind", error_kinds(), ids=lambda kind: kind.__name__)
def test_docstring_of_an_error_has_meaning_and_remedy(kind: type[WalSinkError]) -> None:
    """The docstring is the entry of the error in the reference."""
    meaning, remedy = explanation(kind)
    assert len(meaning.split()) > 8
    assert remedy.endswith(".")
    assert kind.exit_code in EXIT_CODES


@cache
def known_tests() -> set[str]:
    """Return the names of all test functions."""
    trees = (ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py"))
    return {n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_failure_table_names_existing_tests() -> None:
    table = rows(section(PROTOCOL / "README.md", "What a failure costs"))
    assert table[0][-1] == "shown by"
    named = {name for row in table[1:] for name in quoted(row[-1]) if name.startswith("test_")}
    assert len(named) > 12
    assert named <= known_tests(), named - known_tests()
    assert all("test_" in row[-1] for row in table[1:])


RULES = {
    re.sub(r"<a .*</a>", "", name): (text, code)
    for name, text, code in rows(section(PROTOCOL / "README.md", "Twelve rules"))[1:]
    if name != "---"
}
"""The text and the modules of each rule, by its name."""


def test_protocol_has_twelve_rules_with_anchors() -> None:
    assert len(RULES) == 12
    assert all(f'<a id="{name}">' in text(PROTOCOL / "README.md") for name in RULES)


@pytest.mark.parametrize("name", RULES)
def test_module_of_each_rule_names_the_rule(name: str) -> None:
    modules = quoted(RULES[name][1])
    assert modules
    for module in modules:
        code = (ROOT / "wal_sink" / module).read_text(encoding="utf-8")
        assert re.search(rf"\brules? [^.]*`{name}`", code), f"{module} does not name rule `{name}`"


def test_rules_that_the_code_names_are_in_the_table() -> None:
    named = {
        name: path
        for path in sorted((ROOT / "wal_sink").rglob("*.py"))
        for name in re.findall(r"\brule `([a-z-]+)`", path.read_text("utf-8"))
    }
    assert len(named) > 6
    assert named.keys() <= RULES.keys(), named


MAP = Path("wal_sink", "README.md")


def packages() -> dict[str, set[str]]:
    """Return the modules of each package of the product."""
    modules: dict[str, set[str]] = {}
    for top in ("wal_sink", "state_backends"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = f"{path.parent.relative_to(ROOT).as_posix()}/"
            package = name if name == "wal_sink/" else name.removeprefix("wal_sink/")
            modules.setdefault(package, set()).update({path.stem} - {"__init__"})
    return modules


def test_package_map_names_every_module() -> None:
    """The package of a target may be left out."""
    table = rows(section(MAP, "Packages"))[1:]
    drawn = {
        quoted(package)[0]: {name for name in quoted(modules) if re.fullmatch("[a-z0-9_]+", name)}
        for package, _, modules in table
    }
    built = packages()
    targets = {f"{info.package.replace('.', '/')}/" for info in BUILTIN.values()}
    assert built.keys() - targets <= drawn.keys() <= built.keys()
    for package, modules in drawn.items():
        assert modules == built[package], f"wal_sink/README.md, {package}"


def test_package_map_names_only_existing_modules() -> None:
    named = {name for row in rows(section(MAP, "Where the code runs")) for name in quoted(row[1])}
    paths = {name.rstrip("/") for name in named if "/" in name}
    assert len(paths) > 10
    for path in paths:
        module = ROOT / "wal_sink" / path
        assert module.is_dir() or module.with_suffix(".py").exists(), path


def test_readme_stays_within_its_line_limit() -> None:
    """Each target may add a line."""
    assert len(text(Path("README.md")).splitlines()) <= 122 + len(BUILTIN)


DOCS = [page for page in PAGES if page.parts[0] == "docs" and "upstream" not in page.parts]


@pytest.mark.parametrize("page", DOCS, ids=str)
def test_page_opens_with_what_its_reader_can_do(page: Path) -> None:
    title, blank, first, *_ = text(page).splitlines()
    assert title.startswith("# ")
    assert not blank
    assert first.startswith("After this page you ")


@pytest.mark.parametrize(
    ("folder", "most"), [("docs/protocol", 4_000), ("docs/cassandra.md", 2_000)]
)
def test_pages_stay_within_their_word_limit(folder: str, most: int) -> None:
    pages = [page for page in PAGES if page.as_posix().startswith(folder)]
    words = [
        word for page in pages for word in text(page).split() if not re.fullmatch("[|-]+", word)
    ]
    assert pages
    assert len(words) <= most


def test_readme_and_quickstart_have_the_same_program() -> None:
    """tests/test_wheel.py runs this program."""
    program = EXAMPLE.read_text(encoding="utf-8")
    assert quick_start(README) == quick_start(PAGE) == program


def test_readme_names_and_links_every_target() -> None:
    content = text(Path("README.md"))
    for info in BUILTIN.values():
        assert info.title.removeprefix("Apache ").partition(" by ")[0] in content
        assert f"(docs/{info.name}.md)" in content
        assert not info.client or f"[{info.name}]" in content


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_options_commands_and_links_of_pages_exist(page: Path) -> None:
    """A page names only existing options, commands, flags, files and headings, and valid Python."""
    known = {name.lower() for name in names(*DECLARED)}
    prefixes = ("cassandra.", "postgresql.", "sql.", "kafka.", "wal.", "flush.", "checkpoint.")
    for name in re.findall(r"`([a-z]+\.[a-zA-Z.]+)`", text(page)):
        if name.startswith(prefixes) and not name.endswith((".py", ".json", ".yaml")):
            assert name.lower() in known, name
    for command in commands_in(text(page)):
        verb, *words = command.split()
        assert verb in COMMANDS, command
        flags = {flag for parameter in COMMANDS[verb].params for flag in parameter.opts}
        assert {w.rstrip(".,;)") for w in words if w.startswith("--")} <= {*flags, "--help"}, (
            command
        )
    for block in re.findall(r"^```python\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL):
        ast.parse(block)
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if not link.startswith("https://"):
            assert_leads_somewhere(page, link)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_modules_and_functions_of_pages_exist(page: Path) -> None:
    """A page names only existing modules and functions. The change log may name removed ones."""
    for span in quoted(text(page)):
        if re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)*\.py", span):
            folders = (ROOT / page).parent, ROOT, ROOT / "wal_sink", ROOT / "tests"
            nearby = [*folders, *(package for package in folders[0].iterdir() if package.is_dir())]
            assert any((folder / span).exists() for folder in nearby), span
        elif re.fullmatch(r"(wal_sink|state_backends)(\.\w+)+", span):
            assert pkgutil.resolve_name(span) is not None


def commands_in(page: str) -> list[str]:
    """Return the commands in a page, without `wal-sink`."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    lines = re.findall(r"^ *(wal-sink .*)$", page, re.MULTILINE)
    changed = [span for span in spans if span.partition(" ")[0] in COMMANDS and " " in span]
    named = [text for text in (*spans, *lines) if text.startswith("wal-sink ")]
    return changed + [text.removeprefix("wal-sink ") for text in named]


def assert_leads_somewhere(page: Path, link: str) -> None:
    """Check that the file of a relative link exists, and the heading of its anchor."""
    path, _, anchor = link.partition("#")
    present = (ROOT / page).parent / path if path else ROOT / page
    assert present.exists(), f"{page}: {link}"
    if anchor:
        content = present.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", content, re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs | set(re.findall(r'<a id="([^"]+)">', content)), f"{page}: {link}"


@pytest.mark.parametrize("name", ["outage", "recovered", "show", "epoch"])
def test_pictures_have_only_lines_that_status_prints(name: str) -> None:
    """The pictures name no machine, and only lines that `status` still prints."""
    assert f"(images/{name}.svg)" in text(MONITOR)
    picture = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    assert len(picture) < 100_000
    for place in ("/tmp", "/home", "/root", "/work", "127.0.0.1:", "@font-face"):
        assert place not in picture
    if name in ("outage", "recovered"):
        first = re.findall(r'<text [^>]*x="0"[^>]*>([^<]*)</text>', picture)
        texts = [html.unescape(label).replace("\xa0", " ") for label in first]
        labels = {text.strip() for text in texts if text.strip() and text[0] not in "$ "}
        assert {"query", "lag", "last error", "deletable"} <= labels
        known = {line.name for line in status_lines(FAILING)}
        assert labels <= known, "run `make screens`"


FAILING = msgspec.structs.replace(STATUS, pending_bytes=1, quarantined_rows=1, given_up=("lake",))
"""A status with all lines."""
