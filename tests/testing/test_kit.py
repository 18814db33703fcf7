"""The `shoal.testing` package as a whole: its imports and its public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal.testing
import shoal.testing.asgi

KIT = Path(shoal.testing.__file__).parent
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "testing.rst"


def test_no_file_of_the_kit_imports_a_test_framework():
    for path in KIT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            roots = {name.split(".")[0] for name in [*names, getattr(node, "module", "") or ""]}
            assert not roots & {"pytest", "_pytest", "unittest", "hypothesis"}, path


def test_the_kit_needs_no_test_framework():
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "import shoal\n"
        "assert 'shoal.testing' not in sys.modules\n"
        "import shoal.testing.asgi\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", shoal.testing.__all__)
def test_a_public_name_is_in_the_reference_and_has_a_docstring(name):
    assert re.search(rf"shoal\.testing\.{name}\b", REFERENCE.read_text(encoding="utf-8"))
    assert getattr(shoal.testing, name).__doc__


@pytest.mark.parametrize("name", ["Answer", "Call", "Lifespan", "ask", "calling"])
def test_a_name_of_the_driver_is_in_the_reference(name):
    assert re.search(rf"shoal\.testing\.asgi\.{name}\b", REFERENCE.read_text(encoding="utf-8"))
    assert getattr(shoal.testing.asgi, name).__doc__
