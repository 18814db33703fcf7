"""Settings of the documentation: it is built without network, and every reference must resolve."""

from docutils.nodes import Element, TextElement
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer

import shoal

project = "Shoal"
author = "The Shoal developers"
copyright = author
version = release = shoal.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Shoal {release}"
html_static_path = ["theme"]
html_css_files = ["pages.css"]
html_js_files = ["pages.js"]
# The button that shows a page's source is outside of its landmarks, and few read it.
html_theme_options = {"top_of_page_buttons": []}
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

# A name in single backticks is a link where it is public, and code where it is not.
default_role = "py:obj"
nitpicky = True
# Names of other packages are left as text: an inventory of theirs would have to be downloaded.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(anyio|asyncio|collections|contextlib|contextvars|httpx|inspect|opentelemetry|os|pathlib|ssl|starlette|trio|types|typing)\..+",
    ),
    # Type variables.
    (r"py:.*", r"(.+\.)?[A-Z](_co|_contra)?(\.args|\.kwargs)?"),
    # In an annotation, what is imported for type checkers alone has no module; our pages name one.
    # In a signature with a default that a factory makes, it ends at the first comma.
    (r"py:class", r"\w+(\[\w+)?"),
    # What calls and streams are made of; not for users to name.
    (r"py:.*", r"shoal\.batching\.calls\.intake\.Intake"),
    (r"py:.*", r"shoal\.batching\.handlers\.binding\.Binding"),
    # Keywords, listed where they are taken, and the client by the place of its program.
    (r"py:class", r"shoal\..+\.(\w+Keywords|HttpCallOptions|(Child|Inside|Remote)Client)"),
    # The default of an option that is the batcher's own unless given.
    (r"py:.*", r"shoal\.core\.options\.option\.Same"),
    # Requests and their cost: of a property that the engine reads.
    (r"py:.*", r"shoal\.core\.queue\.Amount"),
]


def resolve_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: TextElement
) -> Element | None:
    """Finds what a docstring calls by its own module's name for it, or by a bare name."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    python = env.get_domain("py")
    for name in (target.rpartition(".")[2], ".".join(target.split(".")[-2:])):
        full_name = f"shoal.{name}"
        if any(full_name == known for known, *_ in python.get_objects()):
            return python.resolve_xref(
                env, node["refdoc"], app.builder, "obj", full_name, node, content
            )
    return content if node["reftype"] == "obj" else None


def show_one_signature(_app: Sphinx) -> None:
    """Shows a function as it is implemented; its overloads are for type checkers."""
    for name in shoal.__all__:
        module = getattr(getattr(shoal, name), "__module__", None)
        if module is not None and module.startswith("shoal"):
            analyzer = ModuleAnalyzer.for_module(module)
            analyzer.analyze()
            analyzer.overloads.clear()


def keep_colons(
    _app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Says that what comes before a colon is no type: in a Returns section, or of an attribute."""
    if what in ("attribute", "property") and lines:
        lines[0] = f": {lines[0]}"
    for place, line in enumerate(lines[:-1]):
        if line.strip() == "Returns:":
            following = lines[place + 1]
            indent = following[: len(following) - len(following.lstrip())]
            lines[place + 1] = f"{indent}: {following.strip()}"


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", show_one_signature)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("missing-reference", resolve_public_name)
