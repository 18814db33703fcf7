"""What commands have loaded, since loading takes nearly all of their start."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from processes import HANG_S, ask

pytestmark = pytest.mark.real_time

# Without what it loads in a thread once clients can connect.
EMPTY = """\
import atexit
import sys

import shoal
from shoal.server.server import _Server


async def load_nothing(self):
    pass


_Server._load = load_nothing
app = shoal.App()
"""

TELLING = f"""{EMPTY}
atexit.register(lambda: print(*sys.modules))
"""

FOR_ENDPOINTS = {
    *("pydantic", "pydantic_core", "starlette.requests", "starlette.responses"),
    *("shoal.batching.batcher", "shoal.serving.backends.backend", "shoal.http.json.payload"),
}
FOR_OTHER_REQUESTS = {
    *("prometheus_client", "starlette.routing", "starlette.datastructures"),
    *("hypercorn", "h11", "h2", "wsproto", "hpack", "shoal.server.streams.connection"),
}
FOR_OPTIONS = {"sqlite3", "tomllib", "shoal.http.admin.api"}


def loaded(terminal, loop):
    """The modules of a server after one request, which no route answers."""
    with terminal.serving("serve", "app:app", "--port", "0", "--event-loop", loop) as (
        process,
        port,
    ):
        assert ask(port, "/nowhere")[0] == 404
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, err
    return set(out.split())


@pytest.mark.parametrize(("loop", "other"), [("trio", "asyncio"), ("asyncio", "trio")])
def test_an_empty_application_is_served_without_what_only_others_need(terminal, loop, other):
    (terminal.directory / "app.py").write_text(TELLING)
    modules = loaded(terminal, loop)
    assert {loop, "shoal.http.app.app", "shoal.serving.controller.controller"} <= modules
    assert modules & {other, *FOR_ENDPOINTS, *FOR_OTHER_REQUESTS, *FOR_OPTIONS} == set()
    assert not any("front_end" in name for name in modules), "they are for --workers"


LISTING = f"""{EMPTY}
at_the_start = set()


@app.endpoint("/loaded")
def loaded(items: list[int]) -> list[list[str]]:
    return [sorted(set(sys.modules) - at_the_start) for _ in items]


async def served(scope, receive, send):
    async def begin(message):
        if message["type"] == "lifespan.startup.complete":
            at_the_start.update(sys.modules)
        await send(message)

    await app(scope, receive, begin)
"""


def test_the_first_request_to_an_endpoint_loads_nothing(terminal):
    (terminal.directory / "app.py").write_text(LISTING)
    with terminal.serving("serve", "app:served", "--port", "0") as (_, port):
        assert ask(port, "/loaded", 1) == (200, [])
        assert ask(port, "/loaded", 1) == (200, []), "while the first answer was sent"


def test_help_loads_no_command_and_a_command_no_other():
    """Each takes several times as long to load as the help."""
    code = "import sys; sys.argv[1:] = {}; from shoal.cli import main\n"
    code += "try: main()\nexcept SystemExit: print(*sys.modules)"
    loaded = {
        words: subprocess.run(
            [sys.executable, "-c", code.format(words.split())],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for words in ("--help", "logs --help")
    }
    assert not {"trio", "anyio", "starlette", "shoal.batching.batcher"} & set(loaded["--help"])
    assert "shoal.commands.logs" in loaded["logs --help"]
    assert "shoal.commands.serve" not in loaded["logs --help"]
