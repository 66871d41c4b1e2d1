"""Builds the wheel of this tree, and environments with its requirements, without a download."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Collection
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from tests.support.programs import ran

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> Path:
    """Build the wheel; use this environment if it has hatchling."""
    isolation = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", folder, ROOT)
    (built,) = folder.iterdir()
    return built


def symbolic(present: Path, here: Path) -> None:
    """Link a package into an environment by a symbolic link."""
    here.symlink_to(present)


def hard(present: Path, here: Path) -> None:
    """Link each file of a package into an environment, so that the environment can be packed."""
    if present.is_file():
        _link(str(present), str(here))
        return
    left_out = shutil.ignore_patterns("tests", "include", "__pycache__")
    shutil.copytree(present, here, copy_function=_link, ignore=left_out)


def _link(present: str, here: str) -> None:
    try:
        os.link(present, here)
    except OSError:
        shutil.copy2(present, here)


def link_requirements(
    site: Path,
    wheel: Path,
    extra: str = "",
    *,
    link: Callable[[Path, Path], None] = symbolic,
    without: Collection[str] = (),
) -> None:
    """Link the requirements of a wheel into an empty environment, with their own requirements.

    :param without: distributions that are left out, with their requirements.
    """
    (distribution_of_wheel,) = metadata.Distribution.discover(name="wal_sink", path=[str(wheel)])
    waiting = [
        Requirement(text) for text in distribution_of_wheel.requires or () if _applies(text, extra)
    ]
    linked = set(without)
    while waiting:
        requirement = waiting.pop()
        if requirement.name in linked:
            continue
        linked.add(requirement.name)
        distribution = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), requirement
        first = {PurePosixPath(str(file)).parts[0] for file in distribution.files or ()}
        for name in first - {"..", "__pycache__"}:
            present, here = Path(str(distribution.locate_file(name))), site / name
            if present.exists() and not here.exists():
                link(present, here)
        extras = requirement.extras or {""}
        waiting += [
            Requirement(text)
            for text in distribution.requires or ()
            if any(_applies(text, extra) for extra in extras)
        ]


def _applies(text: str, extra: str) -> bool:
    marker = Requirement(text).marker
    return marker is None or marker.evaluate({"extra": extra})


def run(*command: str | Path, folder: Path | None = None) -> str:
    """Run a program as from a new shell; return its output, or fail with it."""
    done = ran([str(part) for part in command], cwd=folder, env=fresh_environment())
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fresh_environment() -> dict[str, str]:
    """Return the environment variables without those that tests set."""
    ours = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}
