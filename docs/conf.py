"""How the documentation is built: without network, and every reference must resolve."""

import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "Shoal"
author = "The Shoal developers"
copyright = author
version = release = installed_version("shoal")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Shoal {release}"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Cancellation", "notes_style"), ("Checkpoint", "notes_style")]

nitpicky = True
# Names of other packages are left as text: an inventory of theirs would have to be downloaded.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(anyio|asyncio|collections|contextlib|contextvars|inspect|os|pathlib|starlette|trio|types|typing)\..+",
    ),
]


def write_unreleased_changes(_app: Sphinx) -> None:
    """Renders the news fragments of the next release for the changelog page to include."""
    draft = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Unreleased"],
        cwd=HERE.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    page = HERE / "_build" / "unreleased.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(draft.stdout, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_unreleased_changes)
