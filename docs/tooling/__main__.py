"""`make docs`: writes the generated parts of the pages, and builds the site into build/docs/site."""

from __future__ import annotations

import sys

from docs.tooling.reference import write
from docs.tooling.site import ROOT, BrokenLinkError, build

if __name__ == "__main__":
    write()
    try:
        site = build(ROOT / "build" / "docs")
    except BrokenLinkError as error:
        sys.exit(f"The site has links to missing files or headings:\n{error}")
    sys.stdout.write(f"The site is in {site.relative_to(ROOT)}.\n")
