"""Records the arrivals of requests, for simulations: time, size and priority; never contents.

It notes a request when it ends, and a batch when it ends, so that one note is complete. A request
that waits or runs when the recording ends is not in it.

Its memory is bounded. A slow reader finds that notes were left out, and how many; the batcher never
waits for a reader.
"""

from __future__ import annotations

import secrets
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from shoal.core.events import BatchObserver
from shoal.core.forming.call_options import RequestOptionsFactory
from shoal.core.request import State

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from shoal.core.events import BatchRecord, Unserved
    from shoal.core.request import Batch, Request, RequestOptions

Note = dict[str, Any]
"""What JSON carries of a request, a batch, or a batcher; a line of a trace."""

MOST_HELD: Final = 100_000
"""How many notes are held for a reader; further ones are left out, and counted."""

_MOST_KEYS: Final = 10_000
_MICROSECONDS: Final = 6
_TENTHS_OF_A_MS: Final = 4
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


class ArrivalRecorder(BatchObserver):
    """Notes the requests and the batches of batchers; add it to their observers."""

    def __init__(
        self,
        began_at: float,
        *,
        most_requests: int,
        most_a_second: int,
        wants: Callable[[str], bool] = lambda _: True,
        request_timeout_s: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        self.requests = 0
        self.lost = 0
        # Earlier requests are noted with this time of arrival.
        self._began_at = began_at
        self._most_requests = most_requests
        self._most_a_second = most_a_second  # further requests are left out, and counted
        self._wants = wants  # whether to record a batcher, by name
        # A batcher's option. A deadline that it made is not noted: a simulation makes it again.
        self._request_timeout_s = request_timeout_s
        self._held: deque[Note] = deque()
        self._second: int = -1
        self._in_second: int = 0
        # of this recording only, so that nobody can try out keys
        self._salt = secrets.token_bytes(16)
        self._hashes: dict[Hashable, str] = {}

    @property
    def is_full(self) -> bool:
        return self.requests >= self._most_requests

    def take(self) -> list[Note]:
        taken = list(self._held)
        self._held.clear()
        return taken

    @override
    def batch_ended(self, record: BatchRecord, requests: Sequence[Request]) -> None:
        if not self._wants(record.batcher):
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
        self._hold(note)
        self._note_all(record.batcher, requests, record.id, record.ended_at)

    @override
    def request_ended(self, batcher: str, batch: Batch, request: Request, now: float) -> None:
        if self._wants(batcher):
            self._note_all(batcher, (request,), batch.id, now)

    @override
    def request_left(self, batcher: str, request: Request, why: Unserved, now: float) -> None:
        if not self._wants(batcher) or not self._room_for(1, now):
            return
        arrived_at, options = request.arrived_at, request.options
        said = {} if options is None else self._said(batcher, options, arrived_at)
        left_s = round(max(0.0, now - arrived_at), _MICROSECONDS)
        note = {"at": self._time(arrived_at), "batcher": batcher, **said}
        self._held.append({**note, "outcome": why, "left_s": left_s})

    def _note_all(self, batcher: str, requests: Sequence[Request], batch: int, now: float) -> None:
        began_at, hold = self._began_at, self._held.append
        # Requests of one batch often share their options, and with them what is noted of these.
        options: RequestOptions | None = None
        said: Note = {}
        for request in requests[: self._room_for(len(requests), now)]:
            arrived_at = request.arrived_at
            at = arrived_at - began_at
            # As `round` to microseconds, in a third of the time.
            note: Note = {
                "at": int(at * 1e6 + 0.5) / 1e6 if at > 0 else 0.0,
                "batcher": batcher,
                "batch": batch,
                "took_s": int((now - arrived_at) * 1e6 + 0.5) / 1e6,
            }
            if request.options is not None:
                if request.options is not options:
                    options = request.options
                    said = self._said(batcher, options, arrived_at)
                note |= said
            if request.state is not State.FINISHED:
                note["outcome"] = _outcome(request, now)
            hold(note)

    def _said(self, batcher: str, options: RequestOptions, arrived_at: float) -> Note:
        note: Note = {}
        made_by = options.options_factory
        if isinstance(made_by, RequestOptionsFactory) and made_by.has_costs:
            note["cost"] = float(options.cost)  # it may be a number of the user's library
        if options.asked_priority is not None:
            note["priority"] = options.asked_priority
        if options.key is not None:
            note["bucket"] = self._hashed(options.key)
        if getattr(options, "home", None) is not None:
            note["shard_key"] = self._hashed(options.metadata["shard_key"])
        if (model := getattr(options, "model", None)) is not None:
            note["model"] = self._hashed(model)
        if options.deadline is not None:
            allowed_s = round(options.deadline - arrived_at, _TENTHS_OF_A_MS)
            usual_s = self._request_timeout_s(batcher)
            if usual_s is None or allowed_s != round(usual_s, _TENTHS_OF_A_MS):
                note["timeout_s"] = max(0.0, allowed_s)
        if options.queue_timeout_s is not None:
            note["queue_timeout_s"] = options.queue_timeout_s
        return note

    def _room_for(self, count: int, now: float) -> int:
        second = int(now - self._began_at)
        if second != self._second:
            self._second, self._in_second = second, 0
        room = min(
            self._most_a_second - self._in_second,
            self._most_requests - self.requests,
            MOST_HELD - len(self._held),
            count,
        )
        room = max(0, room)
        self._in_second += room
        self.requests += room
        self.lost += count - room
        return room

    def _hold(self, note: Note) -> None:
        if len(self._held) >= MOST_HELD:
            self.lost += 1
        else:
            self._held.append(note)

    def _time(self, at: float) -> float:
        return round(max(0.0, at - self._began_at), _MICROSECONDS)

    def _hashed(self, key: Hashable) -> str:
        try:
            found = self._hashes.get(key)
            if found is not None:
                return found
            is_full = len(self._hashes) >= _MOST_KEYS
            if _is_plain(key):
                data = f"{type(key).__name__} {key!r}".encode("utf-8", "backslashreplace")
            elif is_full:
                return "unknown"
            else:  # its text may differ where keys are equal
                data = b"object %d" % len(self._hashes)
        except Exception:  # the user's own key
            return "unknown"
        found = blake2b(data, key=self._salt, digest_size=6).hexdigest()
        if not is_full:
            self._hashes[key] = found
        return found


def _outcome(request: Request, now: float) -> str:
    if request.state is State.FAILED:
        return "failed"
    if request.state is State.DECLINED:
        return "declined"
    # One that ran out of time is cancelled while its batch goes on.
    return "expired" if request.deadline is not None and request.deadline <= now else "cancelled"


def _is_plain(key: Hashable) -> bool:
    parts: tuple[object, ...] = cast("Any", key) if isinstance(key, tuple) else (key,)
    return all(type(part) in _PLAIN for part in parts)
