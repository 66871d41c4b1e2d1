"""Makes a picture of a command's screen."""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from rich.console import Console, RenderableType

COLUMNS = 80

S = TypeVar("S", bound=msgspec.Struct)


def elsewhere(value: S, names: Mapping[str, str]) -> S:
    """Replace the places of this machine in all texts of a document. The host becomes `driver`."""
    text = msgspec.json.encode(value).decode()
    for name, replacement in {**names, socket.gethostname(): "driver"}.items():
        text = text.replace(name, replacement)
    return msgspec.json.decode(text, type=type(value))


def picture(command: str, screen: RenderableType) -> str:
    """Return a terminal with a command and its screen, as SVG without references to other files."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    console.print(f"$ [bold]{command}[/bold]")
    console.print(screen)
    name = re.sub(r"\W+", "-", command)
    svg = console.export_svg(title="", unique_id=name)
    return re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
