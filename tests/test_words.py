"""Plain words: the field's terms in code, messages, tests and docs, and nouns as names of locals.

CONTRIBUTING.md has the glossary. `python -m tests.test_words PATH...` prints what to change in PATH.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

OLD_WORDS = {
    "anew": "again",
    "stood still": "stalled",
    "stands? still": "stalls",
    "standing still": "stalled",
    "pass(ed|es)? over": "skipped",
    "lives": "TTL, or runs",
    "aside": "in quarantine",
    "so many": "the number itself",
    "upon": "on",
    "for good": "forever",
    "by now": "(nothing)",
    "see to": "fix",
    "be it": "whether",
    r"(?<!there )(?<!here )is no(?! longer)": "is not a",
    "(a|each|every|one|second|first|last|next) look": "a read",
}
"""What a text must not say, as a regular expression, and what it says in its place."""

LAGGING = re.compile(r"(?<![a-z])behind(?![a-z])", re.IGNORECASE)
"""For what lags, or is left behind: the line then says so, or speaks of the ledger, a replica or a mark."""

LAG = re.compile(r"lag|lea(ve|ves|ving)|left|ledger|replica|mark\b|commits", re.IGNORECASE)

NOT_NOUNS = frozenset(
    {"found", "each", "said", "told", "seen", "there", "left", "given", "why", "before", "of"}
)
"""What no local and no parameter is called: a name says what the thing is."""

NO_SUBJECTS = frozenset(
    {
        *("what", "where", "when", "which", "who", "whose", "why", "how", "of", "it", "its"),
        *("that", "there", "a", "an", "the", "at", "after", "with", "without"),
    }
)
"""What a test's name must not begin with, after `test`."""

MOST_WORDS = 9
"""How many words a test's name may have, without `test`."""

_OLD = [
    (re.compile(rf"(?<![A-Za-z]){words}(?![A-Za-z])", re.IGNORECASE), plain)
    for words, plain in OLD_WORDS.items()
]


def sources() -> Iterator[Path]:
    """Yield the code and the pages of the project, by their paths in it."""
    for top in ("wal_sink", "state_backends", "tests", "examples", "docs"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".py", ".md") and path != Path(__file__):
                yield path.relative_to(ROOT)
    yield from (path.relative_to(ROOT) for path in sorted(ROOT.glob("*.md")))


def complaints(path: Path) -> Iterator[str]:
    """Yield each wrong word or name of a file, with its line and the words to use."""
    text = (ROOT / path).read_text(encoding="utf-8")
    glossary = "<!-- glossary -->"
    parts = text.split(glossary)
    if len(parts) == 3:  # the glossary names the words that it replaces
        text = parts[0] + "\n" * parts[1].count("\n") + parts[2]
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, plain in _OLD:
            if old := pattern.search(line):
                yield f"{path}:{number}: {old[0]!r}: say {plain!r}"
        if LAGGING.search(line) and not LAG.search(line):
            yield f"{path}:{number}: 'behind' is for what lags: say 'after'"
    if path.suffix == ".py":
        yield from (f"{path}:{name}" for name in names(ast.parse(text)))


def names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of locals and parameters that are not nouns, with the number of their line."""
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.arg) or id(node) in fields:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NOT_NOUNS:
            yield f"{node.lineno}: a local is called {node.id!r}: use a noun"
        if isinstance(node, ast.arg) and node.arg in NOT_NOUNS:
            yield f"{node.lineno}: a parameter is called {node.arg!r}: use a noun"


@pytest.mark.parametrize("folder", sorted({path.parent for path in sources()}), ids=str)
def test_folder_uses_plain_words(folder: Path) -> None:
    files = [path for path in sources() if path.parent == folder]
    assert [line for path in files for line in complaints(path)] == []


@pytest.mark.parametrize("text", ["# read it anew", "# it goes on behind them", "found = 1"])
def test_old_word_or_name_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module.py").write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert len(list(complaints(Path("module.py")))) == 1


def unclear_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of tests that begin with no subject, or have more than nine words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            words = node.name.split("_")[1:]
            if words[0] in NO_SUBJECTS or len(words) > MOST_WORDS:
                yield node.name


def test_test_name_begins_with_a_subject() -> None:
    paths = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "wal_sink/testing").rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    assert [(path.name, name) for path in trees for name in unclear_names(trees[path])] == []


@pytest.mark.parametrize("name", ["test_what_is_no_port", "test_a_b_c_d_e_f_g_h_i_j"])
def test_unclear_test_name_is_refused(name: str) -> None:
    assert [*unclear_names(ast.parse(f"def {name}(): ..."))] == [name]


if __name__ == "__main__":
    for named in map(Path, sys.argv[1:]):
        files = [path for path in sources() if path == named or named in path.parents]
        sys.stdout.writelines(f"{line}\n" for file in files for line in complaints(file))
