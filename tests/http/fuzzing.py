"""Sends an application what nobody meant, and checks that nothing is kept of it.

A hundred requests of each kind in virtual time, half of them on each event loop, and the same in
each run; 20,000 (``SHOAL_SOAK_PROGRAMS``), others in each run, in the soak. The requests go to the
server of this package, whose calls take the direct way, or come by ASGI; some clients leave early.
"""

import gc
import http.client
import io
import logging
import os
import statistics
import tracemalloc
from collections import deque
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from server_in_memory import Wire, serving
from trio._core._run import GLOBAL_RUN_CONTEXT

import shoal
from shoal.server.http1 import call as http1_call
from shoal.testing import run_virtually
from shoal.testing.asgi import Answer, Call
from time_limits import HANG_S

LOOPS = ("trio", "asyncio")
QUICK_CASES = 25
SOAK_CASES = int(os.environ.get("SHOAL_SOAK_PROGRAMS", "20000"))
# What these requests may add to the memory when they are made again and again, in bytes.
MOST_KEPT = 2**16

QUICKLY = settings(
    max_examples=QUICK_CASES,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
AT_LENGTH = settings(
    max_examples=SOAK_CASES,
    deadline=1000 * HANG_S,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Sent:
    """A request."""

    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"
    directly: bool = False
    leaves: bool = False


def sent_by(requests: st.SearchStrategy[Sent]) -> st.SearchStrategy[Sent]:
    ways = st.sampled_from([(True, False)] * 4 + [(False, False)] * 4 + [(True, True)])
    return st.tuples(requests, ways).map(
        lambda pair: Sent(
            pair[0].path, pair[0].body, pair[0].headers, pair[0].method, pair[1][0], pair[1][1]
        )
    )


class ClosingWire(Wire):
    """A connection whose end can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = anyio.Event()

    def end_sending(self) -> None:
        self.ended.set()

    def close(self) -> None:
        super().close()
        self.ended.set()

    abort = close


class _Received:
    """What `http.client` reads an answer from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


Check = "Callable[[Target, Any], Awaitable[object]]"


class Errors(logging.Handler):
    """Notes what is logged as an error: none of what clients send is one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(logging.Formatter().format(record))


class Target:
    """An open application, and a server of it."""

    def __init__(self, app: shoal.App, server: Any, errors: Errors) -> None:
        self.app = app
        self._server = server
        self._errors = errors

    async def check(self, check: Check, case: Any) -> None:
        """Sends a case, and checks that it is no error of the server."""
        await check(self, case)
        told, self._errors.told = self._errors.told, []
        assert not told, told[0]

    async def answer(self, sent: Sent) -> Answer | None:
        """Makes a request; None if its client has left."""
        if sent.directly:
            return await self._directly(sent)
        call = Call(self.app, sent.path, method=sent.method, body=sent.body, headers=sent.headers)
        await call.run()
        assert not call.listened_to_the_end
        return call.answer

    async def _directly(self, sent: Sent) -> Answer | None:
        path, _, query = sent.path.partition("?")
        target = quote(path) + ("?" + query if query else "")
        lines = [f"{sent.method} {target} HTTP/1.1", "Host: shoal.test", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in sent.headers]
        head = "\r\n".join([*lines, f"Content-Length: {len(sent.body)}", "", ""])
        client = self._server.connect(ClosingWire())
        client.say(head.encode("latin-1", "replace") + sent.body)
        if sent.leaves:
            await anyio.lowlevel.checkpoint()
            client.leave()
        await client.wire.ended.wait()
        client.leave()
        if sent.leaves:
            return None
        found = http.client.HTTPResponse(_Received(client.wire.sent), method=sent.method)  # type: ignore[arg-type]
        found.begin()
        headers = {name.lower(): value for name, value in found.getheaders()}
        body = found.read()
        found.close()
        while not client.releases:
            await anyio.lowlevel.checkpoint()
        return Answer(found.status, headers, body)

    async def nothing_is_kept(self) -> None:
        """Checks that no call runs, no place is taken, and no body is held."""
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        for backend in self.app.controller.backends.values():
            assert (backend.queued, backend.running) == (0, 0)
        incomplete = self.app._shared.incomplete
        assert (incomplete._held, dict(incomplete._held_by)) == (0, {})
        began, ended = self._server.counts()
        assert began == ended
        assert not self._server.shared.connections


@asynccontextmanager
async def opened(app: shoal.App):
    errors = Errors()
    log = logging.getLogger("shoal")
    log.addHandler(errors)
    try:
        async with app.lifespan(), serving(app, allowed_hosts=["*"]) as server:
            yield Target(app, server, errors)
    finally:
        log.removeHandler(errors)


def fuzz_quickly(new_app: Callable[[], shoal.App], cases: Any, check: Check) -> None:
    """Sends some requests, the same in each run; each second one has a random change."""
    drawn: list[Any] = []
    random = Random(0)

    def draw(case: Any) -> None:
        drawn.append(case)
        if isinstance(case, Sent):
            drawn.append(replace(case, body=changed(case.body, random)))

    QUICKLY(given(cases)(draw))()

    async def main(some: list[Any]) -> None:
        async with opened(new_app()) as target:
            for one in some:
                try:
                    with anyio.fail_after(HANG_S):
                        await target.check(check, one)
                except Exception as error:
                    error.add_note(f"the case: {one}")
                    raise
            await target.nothing_is_kept()

    for number, loop in enumerate(LOOPS):
        half = [one for place, one in enumerate(drawn) if place // 2 % 2 == number]
        run_virtually(partial(main, half), backend=loop)


def changed(body: bytes, random: Random) -> bytes:
    at = random.randrange(len(body) + 1)
    return body[:at] + random.randbytes(random.randrange(3)) + body[at + random.randrange(3) :]


def prune_deadlines() -> None:
    """Drops the deadlines that nobody waits for any more, which Trio keeps for a while."""
    GLOBAL_RUN_CONTEXT.runner.deadlines._prune()


def fuzz_at_length(new_app: Callable[[], shoal.App], cases: Any, check: Check) -> None:
    """Sends many requests; checks the memory as well."""
    last: deque[Any] = deque(maxlen=200)

    async def main() -> None:
        async with opened(new_app()) as target, anyio.from_thread.BlockingPortal() as portal:

            def make(one: Any) -> None:
                portal.start_task_soon(target.check, check, one).result(HANG_S)

            def send(one: Any) -> None:
                make(one)
                last.append(one)

            def send_all() -> list[int]:
                AT_LENGTH(given(cases)(send))()
                tracemalloc.start()
                kept: list[int] = []
                for _ in range(6):
                    for one in list(last):
                        make(one)
                    portal.call(target.nothing_is_kept)
                    portal.call(prune_deadlines)
                    http1_call._lines.clear()
                    gc.collect()
                    kept.append(tracemalloc.get_traced_memory()[0])
                tracemalloc.stop()
                return kept

            kept = await anyio.to_thread.run_sync(send_all)
            # Two of what is bounded are cleared, as they grow for some rounds and then shrink:
            # the deadlines of Trio that have passed, and lines of headers.
            grown = statistics.median(after - before for before, after in pairwise(kept))
            assert grown < MOST_KEPT, kept

    anyio.run(main, backend="trio")


def checking(form: Callable[[Sent, Answer], object]) -> Check:
    """Returns a check of each answer: no error of the server, and of this form."""

    async def check(form: Callable[[Sent, Answer], object], target: Target, sent: Sent) -> None:
        found = await target.answer(sent)
        if found is not None:
            limited = {name for name, _ in sent.headers} & {"x-request-timeout"}
            told = (found.status, found.body[:1000])
            assert found.status < 500 or (limited and b"deadline-exceeded" in found.body), told
            form(sent, found)

    return partial(check, form)


# Marks a test that is given how long it sends requests: for a moment, or in the soak for long.
fuzzed = pytest.mark.parametrize(
    "fuzz",
    [
        pytest.param(fuzz_quickly, id="quickly"),
        pytest.param(
            fuzz_at_length, id="at length", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]
        ),
    ],
)
