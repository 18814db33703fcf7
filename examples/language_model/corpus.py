"""The training data of the model: every docstring of the standard library.

It comes with Python, so training needs no download, and its English is of one clear kind. The text
differs a little between Python versions; for one Python it is always the same.
"""

import ast
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# Packages installed beside the standard library, and test suites that only some
# distributions include.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def standard_library() -> Path:
    """Returns the folder of this interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def docstrings(root: Path) -> list[str]:
    """Returns the docstrings of the Python files under a folder, each once, in a fixed order.

    Args:
        root: The folder to read.

    Returns:
        Cleaned docstrings of ASCII text, in the order of file paths and of lines.
    """
    # A dict keeps the first of equal docstrings and their order.
    return list(dict.fromkeys(text for path in _sources(root) for text in _docstrings_of(path)))


def _sources(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.rglob("*.py")
        if _LEFT_OUT.isdisjoint(path.relative_to(root).parent.parts)
    )


def _docstrings_of(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        # Old modules contain escapes that newer compilers warn about; their text is fine.
        warnings.simplefilter("ignore")
        tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, _Documented):
            text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
            if text and text.isascii() and all(c == "\n" or c.isprintable() for c in text):
                yield text
