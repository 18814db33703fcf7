"""Rules of safety that hold for the whole package, or for every answer."""

import ast
import tomllib
from pathlib import Path

import pytest

import shoal
from shoal.http.app.admin_mount import AppAdmin

ROOT = Path(__file__).parents[2]
SOURCES = {
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path
    for path in (ROOT / "src" / "shoal").rglob("*.py")
}
MAKES_OBJECTS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
PICKLES = {"dumps", "Pickler", "PicklingError"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
# They exchange objects with the processes and actors that they have started, and with nobody else.
EXCHANGE_OBJECTS = ("shoal.replicas.process.", "shoal.replicas.ray.")
SENDS_REQUESTS = {"httpx", "requests", "aiohttp", "urllib.request", "http.client"}
# A flaw was mended in these versions: of how HTTP is read, and of how much a client can make it do.
MENDED_IN = {"h11": (0, 16), "h2": (4, 3), "starlette": (0, 49, 1)}


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def called(nodes):
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def only_pickles(nodes):
    """Whether it imports only what makes bytes of objects."""
    return all(
        isinstance(node, ast.ImportFrom) and {one.name for one in node.names} <= PICKLES
        for node in nodes
        if MAKES_OBJECTS & set(imported([node]))
    )


@pytest.fixture(scope="module")
def nodes_of():
    assert "shoal.http.app.app" in SOURCES
    wanted = (ast.Import, ast.ImportFrom, ast.Call)
    return {
        name: [
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, wanted)
        ]
        for name, path in SOURCES.items()
    }


def test_nothing_but_replicas_makes_objects_of_bytes(nodes_of):
    found = {name for name, nodes in nodes_of.items() if MAKES_OBJECTS & set(imported(nodes))}
    assert found
    others = {name for name in found if not name.startswith(EXCHANGE_OBJECTS)}
    assert {name for name in others if not only_pickles(nodes_of[name])} == set()


def test_nothing_runs_text(nodes_of):
    assert {name for name, nodes in nodes_of.items() if RUNS_TEXT & set(called(nodes))} == set()


def test_the_server_sends_no_requests(nodes_of):
    """So a caller can't make it fetch a URL."""
    found = {name for name, nodes in nodes_of.items() if SENDS_REQUESTS & set(imported(nodes))}
    assert found
    assert {name for name in found if name.startswith(("shoal.http.", "shoal.replicas"))} == set()


def test_no_version_with_a_known_flaw_is_allowed():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    lowest = dict(each.partition(",")[0].split(">=") for each in extras["serve"])
    for name, version in MENDED_IN.items():
        assert tuple(map(int, lowest[name].split("."))) >= version


def test_the_admin_application_does_not_show_its_token():
    admin = AppAdmin(shoal.App(), token="secret", allowed_modules=())
    assert "secret" not in repr(admin)
    assert {admin: 1}[admin] == 1
