"""The metadata of a distribution that name the repository's public address, which only a workflow knows.

Without an address the long description has no relative links: at an index they would lead nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Fills in `urls` and `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Take the address from the variables that GitHub gives every workflow, if they are set."""
        image, link = "", r"\1"
        if repository := os.environ.get("GITHUB_REPOSITORY"):
            source = f"{os.environ['GITHUB_SERVER_URL']}/{repository}"
            commit = os.environ["GITHUB_SHA"]
            image, link = rf"![\1]({source}/raw/{commit}/\2)\n", rf"[\1]({source}/blob/{commit}/\2)"
            metadata["urls"] = {
                "Source": source,
                "Documentation": f"{source}/blob/{commit}/README.md#read-on",
                "Changes": f"{source}/blob/{commit}/CHANGELOG.md",
                "Issues": f"{source}/issues",
            }
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = _LINK.sub(link, _IMAGE.sub(image, text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
