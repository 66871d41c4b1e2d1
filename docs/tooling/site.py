"""Copies the pages of the documentation, builds the site by Zensical, and checks every link of the site.

The sources are Markdown files with links that work in the repository. In the copies, a link to a page leads
to the copy of this page, and a link to another file leads to a copy of this file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from wal_sink.builtin_targets import BUILTIN

ROOT = Path(__file__).parents[2]

OUTSIDE = {
    "benchmarks.md": "tests/benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "code.md": "wal_sink/README.md",
    "containers.md": "docker/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "examples.md": "examples/README.md",
    "index.md": "README.md",
    "storage.md": "state_backends/README.md",
    "tests.md": "tests/README.md",
}
"""The sources of pages outside of `docs/`, by the name of the page in the site."""

_LINK = re.compile(r"(?P<before>\]\()(?P<to>[^)\s]+)(?P<after>\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


class BrokenLinkError(Exception):
    """The site has links to missing files or headings."""


def sources() -> dict[str, Path]:
    """Return the source of each page in the repository, by the path of the page in the site."""
    docs = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    inside = {
        path.relative_to("docs").as_posix().replace("README.md", "index.md"): path for path in docs
    }
    return inside | {page: Path(source) for page, source in OUTSIDE.items()}


def assemble(folder: Path) -> list[str]:
    """Copy all pages and the files in their links into an empty folder; return the paths of the pages."""
    pages = sources()
    page_of = {source.as_posix(): page for page, source in pages.items()}
    for page, source in pages.items():
        place = folder / page
        place.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / source).read_text(encoding="utf-8")
        place.write_text(_linked(text, page, source, page_of, folder), encoding="utf-8")
    return list(pages)


def _linked(text: str, page: str, source: Path, page_of: dict[str, str], folder: Path) -> str:
    """Return the text of a page with the links of the site."""

    def lead(match: re.Match[str]) -> str:
        link = urlsplit(match["to"])
        if link.scheme or not link.path:
            return match[0]
        path = os.path.normpath(source.parent / unquote(link.path))
        if (ROOT / path).is_dir():
            path = f"{path}/README.md"
        to = page_of.get(path) or _copied(path, folder)
        if to is None:
            return match[0]  # `check` reports it
        relative = os.path.relpath(to, PurePosixPath(page).parent)
        anchor = f"#{link.fragment}" if link.fragment else ""
        return f"{match['before']}{relative}{anchor}{match['after']}"

    parts = _FENCE.split(text)
    fences = [*_FENCE.findall(text), ""]
    return "".join(_LINK.sub(lead, part) + fence for part, fence in zip(parts, fences, strict=True))


def _copied(path: str, folder: Path) -> str | None:
    """Copy a file of the repository into the site; return its path there, or None if the file is missing."""
    source = ROOT / path
    if path.startswith("..") or not source.is_file():
        return None
    to = path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
    if source.suffix not in {".svg", ".png"}:
        to = f"{to}.txt"  # a browser shows it
    copy = folder / to
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    return to


class _Page(HTMLParser):
    """Collects the anchors and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {str(values[key]) for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if tag == "img" and values.get("src"):
            self.links.append(str(values["src"]))


def broken_links(site: Path) -> list[str]:
    """Return the links of a built site to missing files or anchors."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    broken = []
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc or path.name == "404.html":
                continue
            linked = Path(os.path.normpath(path.parent / unquote(url.path))) if url.path else path
            if linked.is_dir():
                linked /= "index.html"
            anchors = pages[linked].anchors if linked in pages else set()
            if not linked.exists() or (url.fragment and unquote(url.fragment) not in anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


_PAGES = "    # site.py puts the page of each target here.\n"


def settings() -> str:
    """Return the settings of the site. Its menu has the pages of all targets."""
    text = (ROOT / "docs" / "tooling" / "zensical.toml").read_text(encoding="utf-8")
    pages = "".join(f'    {{ "{info.title}" = "{info.name}.md" }},\n' for info in BUILTIN.values())
    assert _PAGES in text
    return text.replace(_PAGES, pages)


def build(folder: Path) -> Path:
    """Delete the content of a folder, and build the site in it; return the folder to publish.

    :raises BrokenLinkError: a link leads to a missing file or heading.
    :raises subprocess.CalledProcessError: Zensical has failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    assemble(folder / "pages")
    (folder / "zensical.toml").write_text(settings(), encoding="utf-8")
    shutil.copyfile(ROOT / "docs" / "tooling" / "extra.css", folder / "pages" / "extra.css")
    command = [sys.executable, "-m", "zensical", "build", "--clean"]
    subprocess.run(  # noqa: S603 -- of this environment
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
    site = folder / "site"
    if broken := broken_links(site):
        raise BrokenLinkError("\n".join(broken))
    return site
