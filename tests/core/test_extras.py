"""A package that only an extra installs is asked for early, in one way that names the extra."""

import ast
import sys
from pathlib import Path

import pytest

import shoal
from shoal.core.extras import is_installed, need, needing

SOURCE = Path(shoal.__file__).parent


def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def test_a_missing_module_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cachetools", None)
    assert not is_installed("cachetools")
    assert not is_installed("no.such.module")
    wanted = r"^a thing needs cachetools, which is not installed: pip install 'shoal\[cache\]'$"
    with pytest.raises(ModuleNotFoundError, match=wanted):
        need("a thing", "cachetools", "cache")
    with pytest.raises(ModuleNotFoundError, match=wanted), needing("a thing", "cache"):
        import cachetools  # noqa: F401


def test_the_innermost_extra_is_named_and_our_own_mistakes_are_not():
    with (
        pytest.raises(ModuleNotFoundError, match=r"^b needs y, .*\[two\]"),
        needing("a", "one"),
        needing("b", "two"),
    ):
        raise ModuleNotFoundError("x", name="y.z")
    with pytest.raises(ModuleNotFoundError, match=r"^x$"), needing("a", "one"):
        raise ModuleNotFoundError("x", name="shoal.nothing")


def test_a_cache_without_cachetools_is_refused_at_the_decoration(monkeypatch):
    monkeypatch.setitem(sys.modules, "cachetools", None)
    cache = shoal.Cache(max_size=8, ttl_s=1)
    wanted = r"cache= needs cachetools, .*pip install 'shoal\[cache\]'"
    app = shoal.App()
    for declare in (
        shoal.batch(cache=cache),
        lambda code: shoal.Batcher(code, cache=cache),
        app.endpoint("/x", cache=cache),
        lambda code: shoal.Batcher(code).configure(cache=cache),
    ):
        with pytest.raises(ModuleNotFoundError, match=wanted):
            declare(doubled)


def test_an_endpoint_on_ray_without_ray_is_refused_where_it_is_declared(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"placement='ray' needs ray, .*shoal\[ray\]"):
        shoal.App().endpoint("/x", placement="ray")(doubled)


def texts(tree):
    """The text of a module without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value]


def test_no_other_file_names_extras_or_looks_for_packages():
    found = set()
    for path in SOURCE.rglob("*.py"):
        source = path.read_text()
        if "find_spec" not in source and "pip install" not in source:
            continue
        tree = ast.parse(source)
        names = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
        if "find_spec" in names or any("pip install" in str(text) for text in texts(tree)):
            found.add(path.relative_to(SOURCE).as_posix())
    assert found == {"core/extras.py"}
