"""The floors of DESIGN: who may import whom, who knows an event loop, and how long a file may be.

The rules are functions from sources to complaints, so that each is also run on a planted violation.
"""

import ast
import functools
import graphlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shoal"
LONGEST_FILE = 450

_BELOW = frozenset({"errors", "core", "loops", "failures"})
_ENGINE = _BELOW | {"batching", "replicas"}
_SERVED = _ENGINE | {"asgi", "http_client", "serving", "status"}

MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    # the status of a controller, as plain values
    "status": frozenset(),
    "core": frozenset({"errors"}),
    "loops": frozenset({"errors", "core"}),
    "failures": frozenset({"errors", "loops"}),
    # what a server and an application both know
    "asgi": frozenset({"errors", "core", "failures"}),
    # nothing of batching or serving: it serves any application
    "server": _BELOW | {"asgi"},
    "batching": _BELOW,
    # of batching: what adapts the user's functions, and the batch that is running
    "replicas": _BELOW | {"batching", "version"},
    "http_client": _ENGINE | {"asgi"},
    "serving": _ENGINE | {"asgi", "http_client", "status"},
    "observe": _BELOW | {"asgi", "status", "version"},
    "planning": _BELOW | {"batching"},
    # nothing of the server: any server runs it
    "http": _SERVED - {"http_client"} | {"observe", "version"},
    # applications that forward: between the server and the application
    "front_ends": _BELOW | {"asgi", "server", "http", "observe", "replicas"},
    "testing": _SERVED - {"http_client"} | {"http", "server"},
    "embedded_server": _SERVED | {"observe", "http", "server"},
    "starting": _SERVED | {"observe", "http", "server", "embedded_server"},
    "commands": _SERVED - {"http_client"}
    | {"observe", "http", "server", "front_ends", "planning", "starting"},
    # for other frameworks, each of which it knows
    "integrations": _SERVED - {"http_client"} | {"observe", "http", "testing"},
    # public names of the folders below
    "policies": frozenset({"core"}),
    "statistics": frozenset({"core"}),
    "version": frozenset(),
    "cli": frozenset({"commands", "version"}),
    "__main__": frozenset({"cli"}),
    "top": _SERVED | {"observe", "http", "starting", "policies", "statistics"},
}
# Metrics read the frozen snapshots that a batcher hands out, and nothing else of the engine.
ALSO_ALLOWED = {
    ("observe", "shoal.batching.statistics"),
}

# What few need.
LONG_TO_LOAD = {
    *("shoal.server.streams.http2", "shoal.server.streams.http1_websocket"),
    *(
        "anyio.from_thread",
        "importlib.metadata",
        "ssl",
        "tomllib",
        "shoal.serving.app_file.file",
    ),
    *("shoal.loops.asyncio_parking", "shoal.loops.trio_parking"),
    *("asyncio", "shoal.serving.state_file"),
    # with endpoints, which an application may begin without
    *("shoal.http.app.code", "shoal.serving.backends.backend", "shoal.http.json.payload"),
    *("shoal.http.requests.call", "shoal.http.json.endpoint"),
    "shoal.http.json.queries",
    *("shoal.http.requests.plain", "shoal.http.websocket.connection"),
    # with httpx
    "shoal.http_client.upload",
    # with tracing, and with OpenTelemetry
    *("shoal.http.app.traced", "shoal.observe.otel.instrument"),
    "shoal.observe.otel.providers",
    # with the option for it
    "shoal.http.requests.timed",
    # with a request for metrics
    "shoal.observe.collector",
    # with processes that speak HTTP for the server
    "shoal.front_ends.listener",
    "shoal.http.json.decoder",
    # with a server for other Shoal servers, and with TLS between them
    *("shoal.serving.model_server.listener", "shoal.replicas.remote.tls"),
    # with Hypercorn
    "shoal.commands.server.hypercorn_host",
    # with a reader of the pages for callers, and of the dashboard
    *("shoal.http.openapi.document", "shoal.http.openapi.pages", "shoal.http.dashboard.feed"),
}

# Classes with one subclass of ours, that are no halves of it.
CONTRACTS = {
    # What others call a batched function by, in annotations.
    "shoal.batching.calls.call.StreamCall",
    "shoal.batching.calls.call.UnaryCall",
    # The typed keywords of placements, beside their options.
    "shoal.replicas.placements.PlacementKeywords",
    # What a protocol over HTTP is: a codec, and the form of its streams.
    "shoal.http.requests.protocol.Codec",
    "shoal.http.requests.protocol.StreamForm",
    "shoal.http.requests.protocol.HttpProtocol",
    "shoal.http.requests.protocol.ProtocolRoutes",
    # A request by HTTP, with and without `Server-Timing`.
    "shoal.http.requests.exchange.Exchange",
    # What a request knows of its batch, which knows its requests.
    "shoal.core.request.RequestBatch",
}

EVENT_LOOPS = {"asyncio", "trio"}
KNOW_AN_EVENT_LOOP = {
    "shoal.loops.asyncio_parking",  # a caller parks on the loop's own primitive
    "shoal.loops.event_loop",  # names their types
    "shoal.loops.parking",  # as well
    "shoal.loops.private",  # lists what is read of their private parts
    "shoal.loops.trio_parking",
    "shoal.commands.server.process",  # starts the process's loop
    "shoal.testing.virtual_time",  # gives each loop a clock that jumps
}
OPTIONAL = (
    *("serve", "plot", "client", "ray", "uvloop", "cache", "bodies", "reload", "gpu", "otel"),
)


@dataclass(frozen=True)
class Import:
    """One import statement's target, and where it stands."""

    importer: str
    target: str
    line: int
    late: bool


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "top"


class Statement(NamedTuple):
    """An import statement, and where it stands."""

    node: ast.Import | ast.ImportFrom
    is_late: bool
    is_for_types: bool


class Parsed(NamedTuple):
    """The imports of a source, and its classes with the names of their bases."""

    imports: list[Statement]
    classes: list[tuple[str, list[str]]]


@functools.cache
def parsed(source: str) -> Parsed:
    found = Parsed([], [])

    def look_into(node: ast.AST, is_late: bool, is_for_types: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.append(Statement(node, is_late, is_for_types))
            return
        if isinstance(node, ast.ClassDef):
            bases = [one.value if isinstance(one, ast.Subscript) else one for one in node.bases]
            names = [base.id for base in bases if isinstance(base, ast.Name)]
            found.classes.append((node.name, names))
        is_late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_checked = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.iter_child_nodes(node):
            if not isinstance(inner, ast.expr):
                is_type_only = is_for_types or (is_checked and inner not in node.orelse)
                look_into(inner, is_late, is_type_only)

    look_into(ast.parse(source), False, False)
    return found


def imports_of(module: str, source: str, modules: Mapping[str, str]) -> Iterator[Import]:
    """Every import of a module, those for type checkers and those inside functions included."""
    for node, is_late, _ in parsed(source).imports:
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            origin = node.module or ""
            if node.level:
                package = (
                    module.split(".") if is_package(module, modules) else module.split(".")[:-1]
                )
                base = package[: len(package) - node.level + 1]
                origin = ".".join([*base, *([origin] if origin else [])])
            submodules = [f"{origin}.{alias.name}" for alias in node.names]
            targets = [name if name in modules else origin for name in submodules]
        for target in dict.fromkeys(targets):
            yield Import(module, target, node.lineno, is_late)


def names_in_texts(modules: Mapping[str, str]) -> Iterator[Import]:
    """The modules that code names in a text: to import them later, or to start a process."""
    for module, source in modules.items():
        if is_package(module, modules):  # it names what it exports
            continue
        for node in ast.walk(ast.parse(source)):
            # The name of a package is also that of its logger.
            name = node.value if isinstance(node, ast.Constant) else None
            if isinstance(name, str) and name in modules and not is_package(name, modules):
                yield Import(module, name, node.lineno, True)


def is_package(module: str, modules: Mapping[str, str]) -> bool:
    return any(other.startswith(f"{module}.") for other in modules)


def optional_roots() -> set[str]:
    """Import names of what only an extra installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    roots = {
        requirement.split(">=")[0].split("[")[0].split(".")[0].replace("-", "_")
        for extra in OPTIONAL
        for requirement in project["optional-dependencies"][extra]
    }
    # Its distributions are parts of one package.
    return roots | {"opentelemetry"}


def upward_imports(modules: Mapping[str, str]) -> list[str]:
    complaints = []
    for found in [*all_imports(modules), *names_in_texts(modules)]:
        if found.target.split(".")[0] != "shoal":
            continue
        source, target = layer_of(found.importer), layer_of(found.target)
        if source not in MAY_IMPORT:
            complaints.append(f"{found.importer}: no layer is called {source}")
        elif source == target and source != "top":
            continue
        elif target not in MAY_IMPORT[source] and (source, found.target) not in ALSO_ALLOWED:
            complaints.append(f"{found.importer}:{found.line} may not import {found.target}")
    return complaints


def circular_imports(modules: Mapping[str, str]) -> list[str]:
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for found in all_imports(modules):
        if found.target in modules and found.target != found.importer:
            graph[found.importer].add(found.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def circular_rooms(modules: Mapping[str, str]) -> list[str]:
    """In every folder, its files and folders import each other without a circle."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for found in all_imports(modules):
        importer, target = found.importer.split("."), found.target.split(".")
        depth = 0
        while importer[depth : depth + 1] == target[depth : depth + 1] != []:
            depth += 1
        if depth < min(len(importer), len(target)):
            graph = graphs.setdefault(".".join(importer[:depth]), {})
            graph.setdefault(importer[depth], set()).add(target[depth])
    complaints = []
    for folder, graph in graphs.items():
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            complaints.append(f"in {folder}: {' imports '.join(reversed(error.args[1]))}")
    return complaints


def event_loop_imports(modules: Mapping[str, str]) -> list[str]:
    return [
        f"{found.importer}:{found.line} may not import {found.target}"
        for found in all_imports(modules)
        if found.target.split(".")[0] in EVENT_LOOPS and found.importer not in KNOW_AN_EVENT_LOOP
    ]


def late_imports(modules: Mapping[str, str]) -> list[str]:
    """An import inside a function is for what an extra installs, or for our layer that needs it.

    Or for what takes long to load and few need.
    """
    optional = optional_roots()
    return [
        f"{found.importer}:{found.line} imports {found.target} late"
        for found in all_imports(modules)
        if found.late
        and found.target.split(".")[0] not in optional
        and found.target not in LONG_TO_LOAD
        and not (
            layer_of(found.importer) in {"top", "commands", "starting"}
            and layer_of(found.target) in {"http", "server", "embedded_server"}
        )
    ]


def long_files(modules: Mapping[str, str]) -> list[str]:
    return [
        f"{module} has {lines} lines, {LONGEST_FILE} are allowed"
        for module, source in modules.items()
        if (lines := len(source.splitlines())) > LONGEST_FILE
    ]


def lone_subclasses(modules: Mapping[str, str]) -> list[str]:
    """No class is cut in two: what has one subclass, and no other, is half of that.

    Errors are classes of their own, since users catch them apart.
    """
    subclasses: dict[str, list[str]] = {}
    for module, source in modules.items():
        imports, classes = parsed(source)
        known = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node, _, _ in imports
            if isinstance(node, ast.ImportFrom) and node.module in modules
            for alias in node.names
        }
        known |= {name: f"{module}.{name}" for name, _ in classes}
        for name, bases in classes:
            for base in bases:
                if base in known:
                    subclasses.setdefault(known[base], []).append(known[name])
    return [
        f"{base} has one subclass, {found[0]}: make them one class, or compose them"
        for base, found in subclasses.items()
        if len(found) == 1 and base not in CONTRACTS and not base.startswith("shoal.errors.")
    ]


def all_imports(modules: Mapping[str, str]) -> Iterator[Import]:
    for module, source in modules.items():
        yield from imports_of(module, source, modules)


@functools.cache
def shoal_modules() -> dict[str, str]:
    """The sources of the package, by the names of their modules."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["shoal", *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = path.read_text(encoding="utf-8")
    assert {"shoal", "shoal.errors", "shoal.loops.parking"} <= modules.keys()
    return modules


RULES = [
    *(upward_imports, circular_imports, circular_rooms, event_loop_imports, late_imports),
    *(long_files, lone_subclasses),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule):
    complaints = rule(shoal_modules())
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        (upward_imports, {"shoal.core.line": "import shoal.batching.cell"}),
        (upward_imports, {"shoal.core.line": "from ..batching import x", "shoal.batching": ""}),
        (upward_imports, {"shoal.http.asgi": "if TYPE_CHECKING:\n    from shoal import App"}),
        (upward_imports, {"shoal.utils": "import shoal.errors"}),
        (upward_imports, {"shoal.core.line": "run('shoal.http.x')", "shoal.http.x": ""}),
        (
            circular_imports,
            {"shoal.core.a": "from shoal.core import b", "shoal.core.b": "import shoal.core.a"},
        ),
        (
            circular_rooms,
            {
                "shoal.http.app.a": "from shoal.server.b import x",
                "shoal.http.app.c": "",
                "shoal.server.b": "",
                "shoal.server.d": "from shoal.http.app import c",
            },
        ),
        (event_loop_imports, {"shoal.http.asgi": "def f():\n    import asyncio.events"}),
        (
            late_imports,
            {"shoal.core.line": "class A:\n    def f(self):\n        import shoal.http"},
        ),
        (long_files, {"shoal.core.line": "x = 1\n" * 451}),
        (
            lone_subclasses,
            {
                "shoal.core.a": "class A: ...",
                "shoal.core.b": "from shoal.core.a import A as B\nclass C(B): ...",
            },
        ),
    ],
)
def test_a_planted_violation_is_seen(rule, planted):
    assert len(rule(planted)) == 1


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (upward_imports, {"shoal.batching.run": "from shoal.core.line import Line"}),
        (upward_imports, {"shoal.observe.collector": "import shoal.batching.statistics"}),
        (circular_imports, {"shoal.core.a": "import shoal.core.b", "shoal.core.b": "import json"}),
        (event_loop_imports, {"shoal.loops.trio_parking": "import asyncio, trio"}),
        (late_imports, {"shoal.http.payload": "def f():\n    import orjson"}),
        (lone_subclasses, {"shoal.core.a": "class A: ...\nclass B(A): ...\nclass C(A): ..."}),
    ],
)
def test_what_the_rules_allow(rule, allowed):
    assert rule(allowed) == []
