"""Jars of Maven artifacts and of their dependencies, downloaded once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from wal_sink.demo.maven import cache_folder, made_once

_POM = """\
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>
{dependencies}
</dependencies></project>
"""


def maven_jars(name: str, artifacts: Sequence[str], without: Sequence[str] = ()) -> Path:
    """Return the folder of the jars in the user's cache; skip the test if Maven is missing.

    :param name: the name of the folder, with the versions.
    :param artifacts: each `group:name:version` or `group:name:version:classifier`.
    :param without: dependencies that are left out, each `group:name`.
    """
    maven = shutil.which("mvn") or ""
    folder = cache_folder() / name
    if not (maven or folder.is_dir()):
        pytest.skip(f"the jars of {name} come by Maven (`mvn`), which is not installed")
    excluded = "".join(f"<exclusion>{_tags(item)}</exclusion>" for item in without)
    wanted = "\n".join(
        f"<dependency>{_tags(artifact)}<exclusions>{excluded}</exclusions></dependency>"
        for artifact in artifacts
    )

    def download(work: Path) -> Path:
        (work / "pom.xml").write_text(_POM.format(dependencies=wanted))
        command = [maven, "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        subprocess.run(command, cwd=work, check=True)
        return work / "jars"

    return made_once(folder, download)


def _tags(artifact: str) -> str:
    names = ("groupId", "artifactId", "version", "classifier")
    tags = zip(names, artifact.split(":"), strict=False)
    return "".join(f"<{tag}>{text}</{tag}>" for tag, text in tags)
