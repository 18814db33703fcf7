"""``POST trace``: records the arrivals at a running server, as a stream of lines of JSON.

The recorder observes the requests, and holds a bounded number of notes: times, sizes, priorities,
never contents. A request or a batch is noted when it ends, so that one note is complete. A task
that sends the notes wakes twice a second. A client that reads slowly gets fewer notes, and the
number of lost ones. One that does not read is disconnected, like every client.

Lines: ``trace`` comes first, then one ``batcher`` for each batcher, and again when its options have
changed. Requests have no member ``record``; docs/reference/server.md lists theirs. ``progress``
follows each piece, and ``end`` comes last.
"""

from __future__ import annotations

import secrets
from collections import deque
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import anyio
import orjson

from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.core.events import BatchObserver, BatchRecord, Unserved
from shoal.core.forming.call_options import RequestOptionsFactory
from shoal.core.options.option import seconds, whole
from shoal.core.options.options import OPTIONS
from shoal.core.request import Batch, Request, RequestOptions, State
from shoal.http.requests.plain import one_line_json
from shoal.http.requests.streaming import UNBUFFERED
from shoal.serving.names import found

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from shoal.batching.batcher import Batcher
    from shoal.http.requests.exchange import Exchange
    from shoal.serving.controller.controller import Controller


Note = dict[str, Any]
"""What JSON carries of a request, a batch, or a batcher; a line of a trace."""

MOST_HELD: Final = 100_000
"""How many notes are held for a reader; further ones are left out, and counted."""

_MICROSECONDS: Final = 6
_TENTHS_OF_A_MS: Final = 4


class ArrivalRecorder(BatchObserver):
    """Notes the requests and the batches of batchers; add it to their observers."""

    def __init__(self, began_at: float, *, most_requests: int, tag: str | None = None) -> None:
        self.requests = 0
        self.lost = 0
        # Earlier requests are noted with this time of arrival.
        self._began_at = began_at
        self._most_requests = most_requests
        self._tag = tag  # of the backend to record; None for all
        self._held: deque[Note] = deque()
        # of this recording only, so that nobody can try out keys
        self._salt = secrets.token_bytes(16)

    @property
    def is_full(self) -> bool:
        return self.requests >= self._most_requests

    def wants(self, batcher: str) -> bool:
        return self._tag is None or batcher.partition("/")[0] == self._tag

    def take(self) -> list[Note]:
        taken = list(self._held)
        self._held.clear()
        return taken

    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        if not self.wants(record.batcher):
            return
        note: Note = {
            "record": "batch",
            "batcher": record.batcher,
            "batch": record.id,
            "at": self._time(record.began_at),
            "run_s": round(record.run_s, _MICROSECONDS),
            "size": record.size,
            "load": float(record.load),
            "reason": record.reason.value,
        }
        if record.is_open:
            note["open"] = True
        if record.failed:
            note["failed"] = record.failed
        if len(self._held) >= MOST_HELD:
            self.lost += 1
        else:
            self._held.append(note)
        for request in requests:
            self._note_end(record.batcher, request, record.id, record.ended_at)

    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        if self.wants(batcher):
            self._note_end(batcher, request, batch.id, now)

    def request_left(self, batcher: str, request: Request, why: Unserved, now: float) -> None:
        if self.wants(batcher):
            left_s = round(max(0.0, now - request.arrived_at), _MICROSECONDS)
            self._note(batcher, request, {"outcome": why, "left_s": left_s})

    def _note_end(self, batcher: str, request: Request, batch: int, now: float) -> None:
        end: Note = {"batch": batch, "took_s": round(now - request.arrived_at, _MICROSECONDS)}
        if request.state is not State.FINISHED:
            end["outcome"] = _outcome(request, now)
        self._note(batcher, request, end)

    def _note(self, batcher: str, request: Request, end: Note) -> None:
        if self.is_full or len(self._held) >= MOST_HELD:
            self.lost += 1
            return
        self.requests += 1
        note: Note = {"at": self._time(request.arrived_at), "batcher": batcher}
        if request.options is not None:
            note |= self._said(request.options, request.arrived_at)
        self._held.append(note | end)

    def _said(self, options: RequestOptions, arrived_at: float) -> Note:
        note: Note = {}
        made_by = options.options_factory
        assert isinstance(made_by, RequestOptionsFactory)
        if made_by.has_costs:
            note["cost"] = float(options.cost)  # it may be a number of the user's library
        if options.asked_priority is not None:
            note["priority"] = options.asked_priority
        if options.key is not None:
            note["bucket"] = self._hashed(options.key)
        if options.home is not None:
            note["shard_key"] = self._hashed(options.metadata["shard_key"])
        if options.model is not None:
            note["model"] = self._hashed(options.model)
        if options.deadline is not None:
            # A deadline of the batcher's option is not noted: a simulation makes it again.
            allowed_s = round(options.deadline - arrived_at, _TENTHS_OF_A_MS)
            if allowed_s != round(made_by.limit_s, _TENTHS_OF_A_MS):
                note["timeout_s"] = max(0.0, allowed_s)
        if options.queue_timeout_s is not None:
            note["queue_timeout_s"] = options.queue_timeout_s
        return note

    def _time(self, at: float) -> float:
        return round(max(0.0, at - self._began_at), _MICROSECONDS)

    def _hashed(self, key: Hashable) -> str:
        try:
            return blake2b(b"%d" % hash(key), key=self._salt, digest_size=6).hexdigest()
        except Exception:  # the user's own key
            return "unknown"


def _outcome(request: Request, now: float) -> str:
    if request.state is State.FAILED:
        return "failed"
    if request.state is State.DECLINED:
        return "declined"
    # One that ran out of time is cancelled while its batch goes on.
    return "expired" if request.deadline is not None and request.deadline <= now else "cancelled"


# The version of a trace's form; readers refuse a greater one.
FORMAT: Final = 1

LONGEST_S: Final = 86_400.0

# How many requests are recorded by default, and at most.
_REQUESTS: Final = 1_000_000
_MOST_REQUESTS: Final = 10_000_000

# The members of a request, and whether it must have them.
MEMBERS: Final = {"seconds": True, "backend": False, "most_requests": False}

# The limit of recordings at the same time.
MOST_RECORDINGS: Final = 4

# The time between two pieces of a trace.
PIECE_S: Final = 0.5

_HEADERS: Final = ((b"content-type", b"application/x-ndjson; charset=utf-8"), *UNBUFFERED)
_AT_A_TIME: Final = 2_000


class RunningRecording:
    def __init__(self, controller: Controller, body: dict[str, Any]) -> None:
        self._controller = controller
        tag: str | None = body.get("backend")
        if tag is not None:
            found("backend", tag, controller.backends)
        self._duration_s = seconds("seconds", body["seconds"])
        if not 0 < self._duration_s <= LONGEST_S:
            given = body["seconds"]
            raise ValueError(
                f"seconds must be more than 0, and at most {LONGEST_S:g}, not {given!r}"
            )
        self._began_at = anyio.current_time()
        self._end_at = self._began_at + self._duration_s
        self._options: dict[str, Note] = {}  # by batcher, as sent
        most = _most_requests(body)
        self.recorder = ArrivalRecorder(self._began_at, most_requests=most, tag=tag)

    async def handle(self, exchange: Exchange) -> None:
        self._controller.observers.add(self.recorder)
        try:
            why = await run_unless_left(exchange.when_left, partial(self._send, exchange))
        except CallerLeft:
            if not exchange.is_cut_off:
                raise
            why = "server ended"
        finally:
            self._controller.observers.remove(self.recorder)
        waiting = sum(one.statistics().queued + one.statistics().running for one in self._found())
        end = {**self._state("end"), "why": why, "unfinished": waiting}
        await exchange.end(await self._piece(end))

    async def _send(self, exchange: Exchange) -> str:
        """Sends the recording but for its last piece; returns why it has ended."""
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
                return "server ended"
            if self.recorder.is_full:
                return "full"
            if anyio.current_time() >= self._end_at:
                return "time"
            piece = await self._piece(self._state("progress"))

    async def _piece(self, last: Note) -> bytes:
        """Returns what was recorded since the last piece, in steps that let others run."""
        notes = self.recorder.take()
        parts = [_written(self._news_of_batchers())]
        for start in range(0, len(notes), _AT_A_TIME):
            parts.append(_written(notes[start : start + _AT_A_TIME]))
            await anyio.lowlevel.checkpoint()
        return b"".join([*parts, _written([last])])

    def _state(self, record: str) -> Note:
        at = round(anyio.current_time() - self._began_at, 3)
        recorder = self.recorder
        return {"record": record, "at": at, "requests": recorder.requests, "lost": recorder.lost}

    def _found(self) -> Iterator[Batcher[Any]]:
        for tag, backend in self._controller.backends.items():
            if self.recorder.wants(tag):
                for method_batcher in backend.method_batchers.values():
                    yield method_batcher.batcher

    def _news_of_batchers(self) -> list[Note]:
        news: list[Note] = []
        for batcher in self._found():
            note = note_of(batcher)
            if self._options.get(batcher.name) != note["options"]:
                self._options[batcher.name] = note["options"]
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


def _most_requests(body: dict[str, Any]) -> int:
    value = body.get("most_requests")
    count = _REQUESTS if value is None else whole("most_requests", value, least=1)
    if count > _MOST_REQUESTS:
        raise ValueError(f"most_requests must be at most {_MOST_REQUESTS}, not {count}")
    return count
