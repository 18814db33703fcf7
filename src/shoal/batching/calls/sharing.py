"""Single flight and a cache: equal calls share one request, and one result.

Each call keeps a request of its own, with its caller's waiter and deadline. But the engine gets
only one request for equal calls, the *leader*. The calls' own requests are in a `Flight`, as
requests in the handler are in a batch: when the leader ends, all of them do, each with the same
result or its own copy of the error. So whatever ends one call (its caller leaves, its deadline
passes) takes nothing from the others, and when the last one leaves, the leader is dropped.

The alternative, to make the first caller's request the one that is shared, would have to hand it to
another caller when the first one leaves, with its deadline and its place in the queue.

A cache keeps the results of leaders that have ended well. An error is never kept.

Invariant: a flight is in the table while its leader is alive, and has at least one call.

A key function of the user defines which items are equal. Without one, items are equal if they are
the same text, bytes, whole number or truth value, or have the same pickle: two different items are
never equal, and two equal ones are at worst computed twice. Hashing and comparing the items
themselves would treat 1 as True and 0.0 as -0.0, and most items of models (dicts, arrays) can't be
hashed. Without a key function, calls of different users are not equal either. Users differ by the
metadata of their calls: its ``user_context``, as in a call over HTTP, or else all of it.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.calls.flight import Flight, SharedBuffer, filled_buffer
from shoal.batching.current import waiting_batches
from shoal.core.request import NOTHING, Request, State
from shoal.failures.held import held, holding

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, MutableMapping

    from shoal.batching.calls.intake import Intake
    from shoal.core.options.options import BatchOptions
    from shoal.core.options.records import Cache
    from shoal.core.request import RequestOptions


_BY_VALUE: Final = (str, bytes, int, bool, type(None))
_pickled: Final[Callable[[Any], bytes]] = held(dumps, "pickling an item")


def key_of(name: str, item: object, metadata: Mapping[str, Any]) -> Hashable:
    """Raises a `TypeError` if the item can't be pickled."""
    kind = type(item)
    own = item if kind in _BY_VALUE else _bytes_of(name, item)
    if metadata is NOTHING:
        return kind, own
    user = getattr(metadata, "user_context", None)
    return kind, own, _bytes_of(name, dict(metadata)) if user is None else user


def given_key(name: str, function: Callable[[Any], Hashable], item: Any) -> Hashable:
    """Raises a `TypeError` if the key of a user's function is not hashable."""
    key = function(item)
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"dedupe of {name} must return a hashable key, such as a tuple, not {key!r:.80}"
        ) from None
    return key


def _bytes_of(name: str, value: Any) -> bytes:
    try:
        return _pickled(value)
    except Exception as error:
        raise TypeError(
            f"a call to {name} can't be compared with others, since what it passes can't be "
            f"pickled: {error}; say what makes items equal: dedupe=lambda item: item.id"
        ) from error


_MISSING: Final = object()
_NO_BUFFER: Final = object()
"""The waiter of a stream's request that has no buffer yet."""


class Sharing:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._counters = intake.counters
        self._flights: dict[Hashable, Flight] = {}
        self._key_of: Callable[[Any], Hashable] | None = None
        self._has_models = False
        self._cache: Cache | None = None
        self._results: MutableMapping[Hashable, Any] = {}

    def configure(self, options: BatchOptions) -> None:
        """Applies new options to later calls; another cache begins empty."""
        dedupe = options.dedupe
        self._key_of = None if isinstance(dedupe, bool) else dedupe
        self._has_models = options.models is not None
        if options.cache != self._cache:
            self._cache = options.cache
            self._results = {} if options.cache is None else _new_cache(options.cache, self._intake)

    def clear(self) -> None:
        self._results.clear()
        self._flights.clear()

    def enter(
        self, item: Any, options: RequestOptions | None, now: float, waiter: Any = None
    ) -> Request:
        """Makes the request of one call, like `Intake.enter`; it may have ended already."""
        intake = self._intake
        intake.refuse_blocked()
        key = self._key(item, options)
        [request] = intake.requests_of((item,), waiter, now)
        request.options = options
        value = self._results.get(key, _MISSING) if self._cache is not None else _MISSING
        if value is not _MISSING:
            self._counters.cache_hits += 1
            self._counters.finished += 1
            request.state, request.value = State.FINISHED, value
            return request
        deadline = None if options is None else options.deadline
        if deadline is not None and deadline <= request.arrived_at:
            raise intake.late((request,))
        flight = self._flights.get(key)
        if flight is None or _waits_for_caller(flight):
            flight = self._begun(key, request, streams=waiter is _NO_BUFFER)
        else:
            self._counters.shared += 1
        if (shared := flight.buffer) is not None:
            assert shared.history is not None
            request.waiter = filled_buffer(intake.parking, shared.capacity, shared.history)
        flight.admit(request)
        intake.timers.wake_at(intake.overdue.watch(request))
        return request

    def enter_stream(
        self, item: Any, options: RequestOptions | None, now: float
    ) -> tuple[Intake, Request]:
        """Makes the request of a stream, like `Intake.enter_stream`; it may have ended already."""
        intake = self._intake
        if not intake.parking.seems_here():
            raise intake.elsewhere()
        request = self.enter(item, options, now, _NO_BUFFER)
        if request.waiter is _NO_BUFFER:  # it was answered from the cache
            capacity = intake.former.options.stream_buffer
            request.waiter = filled_buffer(intake.parking, capacity, request.value)
        return intake, request

    def _begun(self, key: Hashable, first: Request, *, streams: bool) -> Flight:
        """Makes the leader of a flight; it has no deadline, since each call has its own."""
        intake = self._intake
        flight = Flight(key, self._flights, intake, self._keep)
        waiter: Any = flight
        if streams:
            capacity = intake.former.options.stream_buffer
            waiter = flight.buffer = SharedBuffer(capacity, flight)
        options = _without_limits(first.options)
        flight.leader = intake.enter(first.item, options, first.arrived_at, waiter)
        flight.on_left = flight.left
        self._flights.setdefault(key, flight)
        return flight

    def _keep(self, key: Hashable, result: Any) -> None:
        if self._cache is not None:
            with suppress(Exception), holding():  # a user's key may raise when it is compared
                self._results[key] = result

    def _key(self, item: Any, options: RequestOptions | None) -> Hashable:
        name = self._intake.name
        metadata = NOTHING if options is None else options.metadata
        if self._key_of is None:
            key = key_of(name, item, metadata)
        else:
            key = given_key(name, self._key_of, item)
        if self._has_models and options is not None:
            return options.model, key
        return key


def _waits_for_caller(flight: Flight) -> bool:
    """Returns whether the leader can't end before the call, as its handler waits for it."""
    # A handler that calls its own function with an item that it works on gets a request of its own,
    # as it would without sharing.
    return any(batch is flight.leader.batch for batch in waiting_batches())


def _without_limits(options: RequestOptions | None) -> RequestOptions | None:
    """Returns the options of the shared request, from those of the first call."""
    if options is None:
        return None
    own = copy(options)
    own.deadline = own.queue_timeout_s = own.timer = own.queue_timer = None
    return own


def _new_cache(cache: Cache, intake: Intake) -> MutableMapping[Hashable, Any]:
    """Raises `ModuleNotFoundError` if cachetools is not installed."""
    from cachetools import TTLCache  # an extra

    made: MutableMapping[Hashable, Any]
    made = TTLCache(cache.max_size, cache.ttl_s, timer=intake.parking.now)
    return made
