"""`wal-sink new-target`: writes a folder with a target of one's own, whose tests pass."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wal_sink.cli.arguments import AsJson
from wal_sink.cli.terminal import output
from wal_sink.errors import OptionError
from wal_sink.targets.registry import installed

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

_FILES = {
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "target.py": "wal_sink_{name}.py",
    "test_contract.py": "test_contract.py",
}
"""Of the template, and what each is called in the new folder."""


class NewTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The document of this command."""

    folder: str
    files: tuple[str, ...]


def new_target(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the target, as option `target` will have it."),
    ],
    *,
    folder: Annotated[
        str, typer.Option(help="Folder to make; default: wal-sink-NAME in the current one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a folder with a target of your own: code, tests that pass, and a pyproject with the entry point.

    It keeps rows in a SQLite file. Put your database in its place, and run the tests as you go.
    """
    with output(as_json=as_json) as console:
        made = write(name, Path(folder or f"wal-sink-{name.replace('_', '-')}"))
        said = f"Made {made.folder} with {', '.join(made.files)}. Next:"
        steps = f"  cd {made.folder}\n  pip install --editable '.[test]'\n  pytest"
        console.show(made, said, steps)


def write(name: str, folder: Path) -> NewTarget:
    """Write the folder.

    :raises OptionError: the name is none, or taken; or the folder is there.
    """
    if _NAME.fullmatch(name) is None:
        raise OptionError(
            f"{name} is no name for a target.",
            "Take small letters, digits and underscores, a letter first, 40 at most: my_store.",
        )
    if name in installed():
        raise OptionError(f"A target {name} is installed already.", "Choose another name.")
    if folder.exists():
        raise OptionError(f"{folder} is there already.", "Choose another --folder, or remove it.")
    words = {"@name@": name, "@Class@": "".join(map(str.capitalize, name.split("_")))}
    words["@package@"] = name.replace("_", "-")
    folder.mkdir(parents=True)
    made = []
    for source, written in _FILES.items():
        text = (files("wal_sink.cli") / "target_template" / f"{source}.txt").read_text("utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        made.append(written.format(name=name))
        (folder / made[-1]).write_text(text, "utf-8")
    return NewTarget(folder=str(folder), files=tuple(made))
