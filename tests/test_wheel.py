"""The distributions, and the README's example with the installed wheel."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

import wal_sink
from tests.support.class_archive import SPARK
from tests.support.programs import ran
from tests.support.quickstart import README, commands, quick_start
from tests.support.wheel import fresh_environment, link_requirements, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DIST_INFO = re.compile(r"wal_sink-[^/]+\.dist-info")
ROWS = 1_000
"""The rows that the example writes."""


def built(folder: Path, repository: str) -> Path:
    """Build the sdist from this tree, and the wheel from the sdist, as a workflow of a repository does.

    :param repository: name of the repository; empty for none.
    """
    address = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_SHA": "0123abc"}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ({"GITHUB_REPOSITORY": repository} | address).items():
            environment.setenv(name, value)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, README.parent)
    return folder


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with sdist and wheel, built without the address of a repository."""
    return built(tmp_path_factory.mktemp("dist"), "")


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    """Return the wheel."""
    (file,) = distributions.glob("*.whl")
    return file


def test_package_index_accepts_wheel_and_sdist(distributions: Path) -> None:
    """The long description has no relative link, which an index could not resolve."""
    about, text = described(distributions)
    assert "Project-URL" not in about
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []
    assert "example.org" not in text
    for store in ("Cassandra", "PostgreSQL", "Kafka", "Delta Lake"):
        assert store in about["Summary"]
    assert about["Author"]
    assert "Under kills" in text


def test_links_of_the_wheel_lead_to_its_repository(tmp_path: Path) -> None:
    """The links of the long description lead to the commit that was built."""
    about, text = described(built(tmp_path, "someone/wal_sink"))
    source = "https://example.org/someone/wal_sink"
    assert f"Source, {source}" in about.get_all("Project-URL", [])
    links = re.findall(r"\]\(([^)#]*)[^)]*\)", text)
    assert f"{source}/raw/0123abc/docs/images/demo.svg" in links
    paths = [link.removeprefix(f"{source}/blob/0123abc/") for link in links if "/blob/" in link]
    assert len(paths) > 30
    assert [path for path in paths if not (README.parent / path).exists()] == []
    assert [link for link in links if link and not link.startswith("https:")] == []


def described(folder: Path) -> tuple[metadata.PackageMetadata, str]:
    """Check the distributions in a folder; return the metadata and the long description of the wheel."""
    files = sorted(folder.iterdir())
    assert [file.name.rpartition("-")[2] for file in files] == [
        "any.whl",
        f"{wal_sink.__version__}.tar.gz",
    ]
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    (wheel,) = metadata.Distribution.discover(name="wal_sink", path=[str(files[0])])
    return wheel.metadata, str(wheel.metadata.json["description"])


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a new environment, made by the README's commands.

    The requirements of the wheel are linked from this environment, not downloaded. Nothing else is installed.
    """
    folder = tmp_path_factory.mktemp("user")
    make, install, *_ = commands()
    assert install == ".venv/bin/pip install '.[delta]'"
    run("bash", "-c", make, folder=folder)
    (site,) = folder.glob(".venv/lib/python*/site-packages")
    link_requirements(site, wheel, "delta")
    pip = f"{folder}/.venv/bin/pip"
    run(pip, "install", "--quiet", "--no-deps", "--no-compile", "--no-index", wheel)
    files = installed(site)
    assert top_level(files) == {"wal_sink", "state_backends", "*.dist-info"}
    assert {"wal_sink/py.typed", "state_backends/py.typed"} <= {*files}
    return folder


@pytest.mark.slow_first
@pytest.mark.parametrize(
    ("pasted", "activated"),
    [(True, False)]
    + [pytest.param(*item, marks=pytest.mark.test_all) for item in ((False, False), (True, True))],
)
def test_example_of_the_wheel_writes_all_rows(
    environment: Path, pasted: bool, activated: bool
) -> None:
    """The example is a file, or pasted into Python's prompt; the environment may be activated."""
    shutil.rmtree(environment / "quickstart", ignore_errors=True)
    (environment / "quickstart.py").write_text(quick_start(), encoding="utf-8")
    python = "python" if activated else ".venv/bin/python"
    earlier = ". .venv/bin/activate && " if activated else ""
    if pasted:
        printed, text = prompt(f"{earlier}{python} -i", quick_start(), environment)
    else:
        printed, text = prompt(f"{earlier}{python} quickstart.py", "", environment)
    assert "Traceback" not in text, text
    assert "SyntaxError" not in text, text
    for warning in ("Spark starts its Python workers", "FutureWarning"):
        assert warning not in text
    assert "starts\n  guarantee   " in text
    assert f"{ROWS} rows\n" in printed
    assert "none: everything checkpointed is flushed" in printed


def test_readme_has_the_short_example_and_its_commands() -> None:
    """The README has the two commands for a clone."""
    assert len([line for line in quick_start().splitlines() if line]) <= 15
    assert {"make demo", "make test"} <= set(commands())


def prompt(shell: str, typed: str, folder: Path) -> tuple[str, str]:
    """Run a shell command with text as its input; return standard output and error."""
    done = ran(
        ["bash", "-c", shell],
        input=typed,
        cwd=folder,
        # The optimising compiler would use both cores for longer than the example runs.
        env={**fresh_environment(), SPARK.variable: SPARK.always},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def installed(site: Path) -> list[str]:
    """Return the files of the installed distribution, relative to site-packages."""
    (record,) = site.glob("wal_sink-*.dist-info/RECORD")
    with record.open(encoding="utf-8", newline="") as lines:
        return [path for path, *_ in csv.reader(lines)]


def top_level(paths: list[str]) -> set[str]:
    """Return the first part of each path, without the command, and without the version of the metadata."""
    ours = [path for path in paths if not path.endswith("/bin/wal-sink")]
    return {DIST_INFO.sub("*.dist-info", path.split("/")[0]) for path in ours}
