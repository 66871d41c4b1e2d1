"""The site of the documentation."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from docs.tooling.site import assemble, broken_links, build, settings

pytestmark = pytest.mark.long


def test_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    site = build(tmp_path / "docs")
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {
        "index.html",
        "quickstart.html",
        "reference/options.html",
        "protocol/index.html",
    } <= pages
    assert "drain_timeout" in (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert "<table>" in (site / "reference" / "options.html").read_text(encoding="utf-8")
    (site / "index.html").write_text('<a href="nowhere.html">x</a><a href="limits.html#none">y</a>')
    assert broken_links(site) == ["index.html: nowhere.html", "index.html: limits.html#none"]


def test_every_page_is_in_the_menu(tmp_path: Path) -> None:
    """Reports to other projects are not in the menu."""
    pages = set(assemble(tmp_path))
    menu = _leaves(tomllib.loads(settings())["project"]["nav"])
    assert len(set(menu)) == len(menu)
    assert set(menu) == {page for page in pages if not page.startswith("upstream/")}


def _leaves(menu: object) -> list[str]:
    match menu:
        case str():
            return [menu]
        case list():
            return [leaf for entry in menu for leaf in _leaves(entry)]
        case dict():
            return [leaf for entry in menu.values() for leaf in _leaves(entry)]
    raise TypeError(menu)
