"""What `shoal serve` has loaded when it answers, since loading takes nearly all of its start."""

import signal

import pytest
from processes import ask

from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

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
    command = ("serve", "app:app", "--port", "0", "--event-loop", loop)
    with terminal.serving(*command, fresh=True) as (process, port):
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
    assert not [name for name in modules if "front_end" in name], "without --workers"


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
    with terminal.serving("serve", "app:served", "--port", "0", fresh=True) as (_, port):
        assert ask(port, "/loaded", 1) == (200, [])
        assert ask(port, "/loaded", 1) == (200, []), "while the first answer was sent"
