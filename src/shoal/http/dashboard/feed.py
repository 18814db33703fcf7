"""The feed of the dashboard: server-sent events, each with the changes since the last one.

Viewers share all work. They wait for the same moments, four a second. The first that wakes takes
the sample and writes the message, which is the same for all with the same last message. There is no
task for that, so nothing runs while nobody watches.

A viewer holds no messages: its next one is made, from the current state, when it has read the last
one. A viewer that reads slowly therefore skips, and one that does not read is disconnected after
``send_timeout_s``, like every client.
"""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import orjson

from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.http.requests.plain import one_line_json
from shoal.http.requests.problem import NOT_OPEN, Problem, Refused
from shoal.http.requests.streaming import UNBUFFERED
from shoal.observe.failures import FailureLog, name_of
from shoal.observe.history import BatcherReading, BatchHistory, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.http.requests.exchange import Exchange
    from shoal.serving.backends.backend import Backend
    from shoal.serving.controller.controller import Controller
    from shoal.status import BackendStatus

_MOST_REPLICAS = 64


def state_of_server(controller: Controller, failures: FailureLog, most: int) -> dict[str, Any]:
    backends, endpoints = controller.backends, controller.endpoints
    return {
        "backends": [_shown(one) for one in islice(backends.values(), most)],
        "endpoints": [one.status() for one in islice(endpoints.values(), most)],
        "hidden": max(0, len(backends) - most) + max(0, len(endpoints) - most),
        "failures": failures.kept[::-1],
    }


def _shown(backend: Backend) -> BackendStatus:
    status = backend.status()
    failure = backend.last_failure
    return replace(
        status,
        ongoing=backend.running,  # a replica counts an open batch as one request
        replicas=status.replicas[:_MOST_REPLICAS],
        # The text of an error is internal; its type is enough to find it in the log.
        failure=None if failure is None else name_of(failure),
    )


# Further viewers are refused.
MOST_VIEWERS: Final = 16

# Fewer are accepted at the application's own address, so that strangers leave room for operators.
MOST_PUBLIC: Final = 12

# Batchers, backends and endpoints; the page says how many are hidden.
MOST_SHOWN: Final = 32

# The time between two messages to a viewer.
FRAME_S: Final = 0.25

_LARGEST: Final = 2**53  # the largest whole number that all readers of JSON can tell apart

_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    *UNBUFFERED,
    (b"x-content-type-options", b"nosniff"),
)


class _Seen(NamedTuple):
    """The numbers of the last row, sample and state that a viewer has seen."""

    row: int = 0
    sample: int = 0
    state: int = 0


class Feed:
    def __init__(self, controller: Callable[[], Controller | None], failures: FailureLog) -> None:
        self._find = controller
        self._failures = failures
        self._history = BatchHistory()
        self._sampler = Sampler(self._history, self._batchers)
        self._viewers = 0
        self._watched: Controller | None = None
        # The state of the server, as JSON, and the number of its versions.
        self._state, self._states = b"", 0
        # The messages of the current moment, by their viewers' last numbers.
        self._frame_at = -math.inf
        self._frames: dict[_Seen, tuple[bytes, _Seen]] = {}
        # A page drops the data of another run, which had another clock and other numbers.
        self._run = secrets.token_hex(4)

    async def handle(self, exchange: Exchange, *, is_public: bool) -> None:
        """Serves one viewer, until it disconnects or the server drains."""
        # A response that has begun is not counted among the requests: it lasts as long as a page
        # is open, and closing the page is no failure.
        if self._controller() is None:
            raise Refused(NOT_OPEN)
        if self._viewers >= (MOST_PUBLIC if is_public else MOST_VIEWERS):
            detail = f"{self._viewers} pages show this server already; close one of them."
            raise Refused(Problem(503, "too-many-viewers", "Too many are watching", detail))
        if exchange.wants_no_body:
            await exchange.respond_without_body(200, _HEADERS)
            return

        has_disconnected = False
        self._viewers += 1
        try:
            await run_unless_left(exchange.when_left, lambda: self._show(exchange))
        except CallerLeft:
            has_disconnected = not exchange.is_cut_off
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._watch(None)
        if not has_disconnected:
            with suppress(CallerLeft):
                await exchange.end(b"")
        exchange.status = 0

    def _controller(self) -> Controller | None:
        controller = self._find()
        return None if controller is None or controller.is_draining else controller

    async def _show(self, exchange: Exchange) -> None:
        await exchange.begin(200, _HEADERS)
        seen = _Seen()
        while (controller := self._controller()) is not None:
            self._watch(controller)
            message, seen = self._message(controller, seen)
            await exchange.piece_in_time(message)
            # All viewers wait for the same moments.
            await anyio.sleep_until((math.floor(anyio.current_time() / FRAME_S) + 1) * FRAME_S)

    def _watch(self, controller: Controller | None) -> None:
        """Observes the batches of a controller in place of the last one's."""
        if controller is self._watched:
            return
        if self._watched is not None:
            self._watched.observers.remove(self._history)
            self._history.forget_running()
        if controller is not None:
            controller.observers.add(self._history)
        self._watched = controller

    def _batchers(self) -> Iterator[BatcherReading]:
        controller = self._controller()
        count = 0
        for backend in () if controller is None else controller.backends.values():
            for method_batcher in backend.method_batchers.values():
                if (count := count + 1) > MOST_SHOWN:
                    return
                batcher = method_batcher.batcher
                is_open = batcher.fill != "closed"
                yield BatcherReading(
                    batcher.name, batcher.statistics(), is_open, method_batcher.streams
                )

    def _message(self, controller: Controller, seen: _Seen) -> tuple[bytes, _Seen]:
        now = anyio.current_time()
        if now >= self._frame_at + FRAME_S / 2:
            self._frame_at = now
            self._frames.clear()
            if self._sampler.step(now):
                self._step(controller)
        frame = self._frames.get(seen)
        if frame is None:
            then = _Seen(self._history.number, self._sampler.number, self._states)
            frame = self._frames[seen] = self._written(seen), then
        return frame

    def _step(self, controller: Controller) -> None:
        """Makes a new state of the server, and forgets deleted batchers."""
        self._history.keep_only([one.name for one in self._sampler.latest])
        state = state_of_server(controller, self._failures, MOST_SHOWN)
        self._state = orjson.dumps(state)
        self._states += 1

    def _written(self, seen: _Seen) -> bytes:
        message: dict[str, Any] = {
            "run": self._run,
            "now": round(anyio.current_time(), 3),
            "lanes": [
                {
                    "name": one.name,
                    "limit": min(one.statistics.max_batch_size, _LARGEST),
                    "open": one.is_open,
                    "rows": lane.since(seen.row),
                    "now": lane.now(is_open=one.is_open),
                }
                for one in self._sampler.latest
                for lane in [self._history.by_batcher[one.name]]
            ],
            "samples": self._sampler.since(seen.sample),
        }
        if seen.state != self._states:
            message["state"] = orjson.Fragment(self._state)
        return b"data: %b\n\n" % one_line_json(orjson.dumps(message))
