"""The Dockerfiles copy all that the installation of the package needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["Dockerfile", "flusher.Dockerfile"])
def test_package_builds_from_what_an_image_copies(name: str, tmp_path: Path) -> None:
    for line in (ROOT / "docker" / name).read_text().splitlines():
        if not line.startswith("COPY ") or "/src" not in line:
            continue
        *sources, _ = line.split()[1:]
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / source)
            else:
                shutil.copy(ROOT / source, tmp_path)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    build = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    assert list(tmp_path.glob("*.whl"))
