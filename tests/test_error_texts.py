"""Every error text of the product: it has whole sentences, and a remedy.

The texts are read from the code. A sample replaces each value, and each text that is made elsewhere.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from wal_sink import errors

PACKAGE = Path(errors.__file__).parent

KINDS = {
    name
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.WalSinkError)
}
SAMPLE = "Sample"
"""Replaces each value, and each text that is made elsewhere."""


class Raised(NamedTuple):
    """A call in the code that makes an error."""

    place: str
    what: tuple[str, ...]
    remedy: tuple[str, ...]
    """Each text that the remedy may have; empty: no remedy."""


def raised() -> Iterator[Raised]:
    """Yield every call that makes an error with a text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or _name(node.func) not in KINDS:
                continue
            if not isinstance(node.args[0], ast.Starred):
                what, *others = (tuple(texts(argument)) for argument in node.args)
                yield Raised(f"{place}:{node.lineno}", what, others[0] if others else ())


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def texts(node: ast.expr) -> list[str]:
    """Return the texts that an expression may have, with the sample for each value."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.FormattedValue(value=value):
            return texts(value)
        case ast.JoinedStr(values=values):
            return ["".join(parts) for parts in product(*map(texts, values))]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return ["".join(parts) for parts in product(texts(left), texts(right))]
        case ast.IfExp(body=body, orelse=orelse):
            return texts(body) + texts(orelse)
    return [SAMPLE]


def complaints(text: str) -> Iterator[str]:
    """Yield the reasons why a text is not whole sentences; lines of code may follow the sentences."""
    sentences = text.partition("\n")[0]
    if not sentences[:1].isupper() and sentences[:1] not in {"`", "-"}:
        yield f"no capital: {text}"
    if not sentences.endswith((".", ":", "?", SAMPLE)):
        yield f"no full stop: {text}"
    if "  " in sentences or not text.strip():
        yield f"a double space, or nothing: {text}"


def test_errors_are_whole_sentences_with_a_remedy() -> None:
    errors = list(raised())
    assert len(errors) > 150, "the search has found too few errors"
    assert [error.place for error in errors if not error.remedy] == []
    texts_of = ((error, text) for error in errors for text in (*error.what, *error.remedy))
    assert [(error.place, line) for error, text in texts_of for line in complaints(text)] == []


def test_texts_name_no_page_of_the_docs() -> None:
    """An installed package has no documentation. Docstrings are not texts."""
    named = []
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        named += [
            f"{path}:{node.lineno}"
            for node in nodes
            if isinstance(node, ast.Constant)
            and node not in docstrings
            and "docs/" in str(node.value)
        ]
    assert named == []


@pytest.mark.parametrize("text", ["gone", "It is gone", "It is  gone.", ""])
def test_error_text_that_is_no_sentence_is_refused(text: str) -> None:
    assert list(complaints(text))
