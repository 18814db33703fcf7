"""The `shoal.testing` package as a whole: its imports and its public names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal.testing
import shoal.testing.asgi

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "modules.rst"


def test_the_kit_needs_no_test_framework():
    program = (
        "import pkgutil, sys, importlib\n"
        "sys.modules |= dict.fromkeys(['pytest', '_pytest', 'unittest', 'hypothesis'])\n"
        "import shoal\n"
        "assert 'shoal.testing' not in sys.modules\n"
        "import shoal.testing as kit\n"
        "for module in pkgutil.walk_packages(kit.__path__, 'shoal.testing.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


PUBLIC = [(shoal.testing, name) for name in shoal.testing.__all__] + [
    (shoal.testing.asgi, name) for name in ("Answer", "Call", "Lifespan", "ask", "calling")
]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_a_public_name_is_in_the_reference_and_has_a_docstring(module, name):
    assert re.search(rf"{module.__name__}\.{name}\b", REFERENCE.read_text(encoding="utf-8"))
    assert getattr(module, name).__doc__
