"""The Dockerfiles copy all files that the package needs for its installation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.programs import ran

ROOT = Path(__file__).parents[2]


def sources(dockerfile: str) -> list[str]:
    """Return the paths that a Dockerfile copies from the repository."""
    lines = (ROOT / "docker" / dockerfile).read_text().splitlines()
    return [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]


@pytest.mark.parametrize("name", ["Dockerfile", "flusher.Dockerfile"])
def test_docker_context_has_all_files_that_images_copy(name: str) -> None:
    """The file .dockerignore excludes all paths that it does not name."""
    ignored, *exceptions = (ROOT / ".dockerignore").read_text().split()
    assert ignored == "*"
    sent = {exception.removeprefix("!") for exception in exceptions}
    assert [source for source in sources(name) if source not in sent] == []


@pytest.mark.parametrize("name", ["Dockerfile", "flusher.Dockerfile"])
def test_package_builds_from_the_files_that_images_copy(name: str, tmp_path: Path) -> None:
    for source in sources(name):
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source)
        else:
            shutil.copy(ROOT / source, tmp_path)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    build = ran(command, cwd=tmp_path)
    assert build.returncode == 0, build.stderr
    assert list(tmp_path.glob("*.whl"))
