"""``POST trace``: records the arrivals at a running server, as a stream of lines of JSON.

The recorder observes the requests, and holds a bounded number of notes. A task that sends them
wakes twice a second. A client that reads slowly gets fewer notes, and the number of lost ones. One
that does not read is disconnected, like every client.

Lines: ``trace`` comes first, then one ``batcher`` for each batcher, and again when its options have
changed. Requests have no member ``record``; docs/reference/server.md lists theirs. ``progress``
follows each piece, and ``end`` comes last.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import orjson

from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.core.options.checks import seconds, whole
from shoal.core.options.options import OPTIONS
from shoal.http.admin.verbs import members
from shoal.http.requests.plain import one_line_json
from shoal.http.requests.problem import Problem, Refused, not_found
from shoal.observe.arrivals import ArrivalRecorder
from shoal.serving.controller.controller import Controller
from shoal.serving.names import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.batching.batcher import Batcher
    from shoal.http.admin.verbs import AdminRequest
    from shoal.http.requests.exchange import Exchange
    from shoal.observe.arrivals import Note
    from shoal.serving.clients.protocol import Client

# The version of a trace's form; readers refuse a greater one.
FORMAT: Final = 1

LONGEST_S: Final = 86_400.0

# The defaults of the limits of a recording, and how high they may be set.
_LIMITS: Final = {
    "most_requests": (1_000_000, 10_000_000),
    "most_a_second": (20_000, 50_000),
}

# The limit of recordings at the same time.
MOST_RECORDINGS: Final = 4

# The time between two pieces of a trace.
PIECE_S: Final = 0.5

_HEADERS: Final = (
    (b"content-type", b"application/x-ndjson; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
_AT_A_TIME: Final = 2_000


class Recordings:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._running = 0

    async def answer(self, request: AdminRequest) -> None:
        """Sends the response itself."""
        if not isinstance(self._client, Controller):
            raise Refused(not_found())
        self._client.check_open()
        recording = RunningRecording(self._client, request.body)
        if self._running >= MOST_RECORDINGS:
            detail = f"{MOST_RECORDINGS} recordings run already; wait until one has ended."
            raise Refused(Problem(503, "too-many-recordings", "Too much is being recorded", detail))
        self._running += 1
        exchange = request.exchange
        try:
            await run_unless_left(exchange.when_left, partial(recording.send, exchange))
        except CallerLeft:
            if not exchange.is_cut_off:
                raise
            recording.why_ended = "server ended"
        finally:
            self._running -= 1
            self._client.observers.remove(recording.recorder)
        await exchange.end(recording.last_piece())


class RunningRecording:
    def __init__(self, controller: Controller, body: dict[str, Any]) -> None:
        members(body, {"seconds": True, "backend": False, **dict.fromkeys(_LIMITS, False)})
        self._controller = controller
        self._tag: str | None = body.get("backend")
        if self._tag is not None:
            found("backend", self._tag, controller.backends)
        self._duration_s = seconds("seconds", body["seconds"])
        if not 0 < self._duration_s <= LONGEST_S:
            given = body["seconds"]
            raise ValueError(
                f"seconds must be more than 0, and at most {LONGEST_S:g}, not {given!r}"
            )
        self._began_at = anyio.current_time()
        self._end_at = self._began_at + self._duration_s
        self._batchers: dict[str, Note] = {}
        # Or "full", or "server ended".
        self.why_ended = "time"
        self.recorder = ArrivalRecorder(
            self._began_at,
            most_requests=_count(body, "most_requests"),
            most_a_second=_count(body, "most_a_second"),
            wants=self._wants,
            request_timeout_s=self._request_timeout_s,
        )

    async def send(self, exchange: Exchange) -> None:
        self._controller.observers.add(self.recorder)
        await exchange.begin(200, _HEADERS)
        first: Note = {
            "record": "trace",
            "format": FORMAT,
            "began_at": datetime.now(UTC).isoformat(timespec="microseconds"),
            "seconds": self._duration_s,
        }
        piece = _written([first, *self._news_of_batchers()])
        while True:
            await exchange.piece_in_time(piece)
            await anyio.sleep_until(min(self._end_at, anyio.current_time() + PIECE_S))
            if self._controller.is_draining:
                self.why_ended = "server ended"
                return
            if self.recorder.is_full:
                self.why_ended = "full"
                return
            if anyio.current_time() >= self._end_at:
                return
            notes = self.recorder.take()
            parts = [_written(self._news_of_batchers())]
            for start in range(0, len(notes), _AT_A_TIME):
                parts.append(_written(notes[start : start + _AT_A_TIME]))
                await anyio.lowlevel.checkpoint()
            piece = b"".join([*parts, _written([self._state("progress")])])

    def last_piece(self) -> bytes:
        waiting = sum(one.statistics().queued + one.statistics().running for one in self._found())
        end = {**self._state("end"), "why": self.why_ended, "unfinished": waiting}
        return _written([*self._news_of_batchers(), *self.recorder.take(), end])

    def _state(self, record: str) -> Note:
        at = round(anyio.current_time() - self._began_at, 3)
        recorder = self.recorder
        return {"record": record, "at": at, "requests": recorder.requests, "lost": recorder.lost}

    def _found(self) -> Iterator[Batcher[Any]]:
        for tag, backend in self._controller.backends.items():
            if self._tag in (None, tag):
                for method_batcher in backend.method_batchers.values():
                    yield method_batcher.batcher

    def _wants(self, batcher: str) -> bool:
        return self._tag is None or batcher.partition("/")[0] == self._tag

    def _request_timeout_s(self, name: str) -> float | None:
        known = self._batchers.get(name)
        return None if known is None else known["options"].get("request_timeout_s")

    def _news_of_batchers(self) -> list[Note]:
        news: list[Note] = []
        for batcher in self._found():
            before = self._batchers.get(batcher.name)
            note = note_of(batcher)
            if before is None or before["options"] != note["options"]:
                self._batchers[batcher.name] = note
                news.append(note)
        return news


def note_of(batcher: Batcher[Any]) -> Note:
    """Returns a batcher's options, and the run times measured so far."""
    options: dict[str, Any] = {}
    functions: list[str] = []
    for name, option in OPTIONS.items():
        value = getattr(batcher.options, name)
        if option.is_function and value not in (None, False, True):
            functions.append(name)
        else:
            options[name] = None if value is None else option.to_plain(value)
    note: Note = {"record": "batcher", "batcher": batcher.name, "options": options}
    if functions:
        note["functions"] = functions
    if batcher.fill != "closed":
        note["open"] = True
    model = batcher.statistics().latency_model
    if model is not None and model.samples:
        note["run_time"] = {"fixed_s": model.b_s, "per_item_s": model.a_s}
    return note


def _written(notes: list[Note]) -> bytes:
    lines = [orjson.dumps(note, option=orjson.OPT_APPEND_NEWLINE) for note in notes]
    return one_line_json(b"".join(lines))


def _count(body: dict[str, Any], name: str) -> int:
    value, (usual, most) = body.get(name), _LIMITS[name]
    if value is None:
        return usual
    count = whole(name, value, least=1)
    if count > most:
        raise ValueError(f"{name} must be at most {most}, not {count}")
    return count
