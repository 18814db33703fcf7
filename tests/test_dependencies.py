"""Each package that the library imports is declared in pyproject.toml, by what the importer needs.

A package that only another dependency installs is gone as soon as that one does without it. The
list of platforms says what pyproject.toml requires and what CI runs.
"""

import ast
import functools
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from test_layers import parsed, shoal_modules
from time_limits import HANG_S

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# It is loaded by the package itself.
LOADED_BY = {"shoal.integrations.pytest": {"pytest"}}
# What a part of the library may import beside the dependencies; the longest prefix of a name wins.
EXTRAS_OF = {
    "shoal": set[str](),
    "shoal.batching.calls.sharing": {"cache"},
    "shoal.batching.current": {"otel"},
    "shoal.commands.run_batch": {"serve"},
    "shoal.commands.server.client": {"client"},
    "shoal.commands.support.batch_lines": {"serve"},
    "shoal.commands.server.hypercorn_host": {"serve"},
    "shoal.commands.server.process": {"uvloop"},
    "shoal.commands.server.reload": {"reload"},
    "shoal.http": {"serve"},
    "shoal.server": {"serve"},
    "shoal.asgi": {"serve"},
    "shoal.http.admin.api": {"serve", "otel"},
    "shoal.http.app.traced": {"serve", "otel"},
    "shoal.http.json.msgpack": {"serve", "bodies"},
    "shoal.http.json.whole_request": {"serve", "bodies"},
    "shoal.http_client": {"client"},
    "shoal.integrations": {"serve"},
    "shoal.observe.collector": {"serve"},
    "shoal.observe.otel": {"otel"},
    "shoal.planning.figures": {"plot"},
}
PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text("utf-8"))["jobs"]


def packages_imported(source: str) -> set[str]:
    """The packages of others that a module imports at run time, anywhere in it."""
    found = set[str]()
    for node, _, is_for_types in parsed(source).imports:
        if is_for_types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif not node.level:
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"shoal"}


def declared_by(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=;]", one)[0]) for one in requirements}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


installed = functools.cache(packages_distributions)


def undeclared_imports(modules: Mapping[str, str]) -> Iterator[str]:
    distributions = installed()
    for module, source in modules.items():
        fitting = (one for one in EXTRAS_OF if f"{module}.".startswith(f"{one}."))
        extras = EXTRAS_OF[max(fitting, key=len)]
        declared = declared_by(PROJECT["dependencies"]).union(
            *(declared_by(PROJECT["optional-dependencies"][extra]) for extra in extras)
        )
        for package in sorted(packages_imported(source) - LOADED_BY.get(module, set())):
            if declared.isdisjoint(map(normal, distributions.get(package, ()))):
                yield f"{module} imports {package}; extras: {sorted(extras)}"


def test_each_import_is_declared():
    assert list(undeclared_imports(shoal_modules())) == []


@pytest.mark.parametrize(
    ("module", "source", "complaints"),
    [
        ("shoal.core.a", "def f():\n    from attrs import define", 1),
        ("shoal.http.a", "try:\n    import httpx\nexcept ImportError: pass", 1),
        ("shoal.core.a", "if TYPE_CHECKING:\n    import orjson\nelse:\n    import absent", 1),
        ("shoal.core.a", "if TYPE_CHECKING:\n    import orjson", 0),
        ("shoal.http.a", "import orjson, anyio.abc, json", 0),
    ],
)
def test_a_planted_import_that_is_not_declared_is_found(module, source, complaints):
    assert len(list(undeclared_imports({module: source}))) == complaints


def pages_with(line: str) -> dict[Path, str]:
    texts = {path: path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
    return {path: text for path, text in texts.items() if line in text}


def test_pages_with_a_line_that_installs_lead_to_how_to_install():
    start = ROOT / "docs" / "start.md"
    pages = pages_with("pip install 'shoal[")
    pages.pop(start)
    assert len(pages) > 10
    away = [path for path, text in pages.items() if "start.md#install)" not in text]
    assert away == []


def test_the_page_about_installing_lists_the_extras():
    page = (ROOT / "docs" / "start.md").read_text("utf-8")
    table = page.split("| extra | for |\n|---|---|\n")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(
        PROJECT["optional-dependencies"]
    )


@pytest.mark.real_time
@pytest.mark.slow
@pytest.mark.skipif(find_spec("pip") is None, reason="uses pip")
def test_the_lines_that_install_need_no_published_version():
    """pip takes the Shoal that is installed, even from a clone, and only adds packages."""
    pages = " ".join(pages_with("pip install 'shoal[").values())
    named = ",".join(re.findall(r"pip install 'shoal\[([a-z,]+)\]'", pages)).split(",")
    # Ray is not among the packages of the tests.
    extras = ",".join(sorted(set(named) - {"ray"}))
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run"]
    installs = subprocess.run(
        [*command, f"shoal[{extras}]"], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    assert installs.returncode == 0, installs.stderr
    assert "Would install" not in installs.stdout


# `.ci/floors.py` pins the lowest versions that pyproject.toml allows
floors = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "floors.py"))["floors"]


def test_each_requirement_is_pinned_to_its_floor():
    requirements = [
        "pyright[nodejs]>=1.1.390",
        "anyio>=4.10",
        "hypercorn>=0.18,<0.19",
        "backports.zstd>=1.0; python_version < '3.14'",
        "anyio>=4.10",
    ]
    assert floors(requirements) == [
        "anyio==4.10",
        "backports.zstd==1.0",
        "hypercorn==0.18",
        "pyright==1.1.390",
    ]


@pytest.mark.parametrize("requirement", ["h11", "h11==0.16", "h11<1", "h11>=0.16,!=0.17"])
def test_a_requirement_without_a_floor_is_refused(requirement):
    with pytest.raises(ValueError, match="wanted name>=floor, or name>=floor,<cap"):
        floors([requirement])


def test_two_floors_of_a_package_are_refused():
    with pytest.raises(ValueError, match="two floors for h11"):
        floors(["h11>=0.16", "h11>=0.17"])


def test_each_lowest_version_is_that_of_the_package():
    wanted = {
        tuple(requirement.split(">=")): extra
        for extra, requirements in [
            ("everything", PROJECT["dependencies"]),
            *(
                (f"the extra `{name}`", some)
                for name, some in PROJECT["optional-dependencies"].items()
            ),
        ]
        for requirement in requirements
    }
    rows = re.findall(
        r"^\| ([\w.-]+) \| ([\d.]+) \| (everything|the extra `\w+`) \|$", PAGE, re.MULTILINE
    )
    assert {(name, version): extra for name, version, extra in rows} == wanted


def test_the_pythons_and_systems_are_those_of_the_workflow():
    [row] = re.findall(r"^\| CPython \| (.*?) \|$", PAGE, re.MULTILINE)
    matrix = JOBS["tests"]["strategy"]["matrix"]
    assert re.findall(r"\d\.\d+", row) == matrix["python"]
    assert [system.partition("-")[0] for system in matrix["os"]] == ["ubuntu", "macos"]
    assert "on Linux and on macOS" in row
    threaded = JOBS["free-threaded"]
    assert all(one in PAGE for one in threaded["strategy"]["matrix"]["python"])
    assert threaded["continue-on-error"] is True
    for job, version in (("ray", "CPython 3.12"), ("lowest", "CPython 3.11")):
        [python] = [
            step["with"] for step in JOBS[job]["steps"] if "python" in str(step.get("uses"))
        ]
        assert python["python-version"] == version.partition(" ")[2]
        assert version in PAGE
