"""A loader: batched calls for one request to a server, with their results remembered.

The first call for a key makes the batched call, and other calls for that key wait for it. If its
caller leaves, one of the others makes the call again. So a loader needs no task, and is dropped
like any other object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, overload

import anyio
from anyio.lowlevel import checkpoint

from shoal.batching.current import waiting_batches
from shoal.failures.exceptions import own_copy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable

T = TypeVar("T")
R = TypeVar("R")

_UNKNOWN: Final = object()


class _Mappable(Protocol):
    """A handle, or another call of one item that can be made with many."""

    def map(self, *columns: Iterable[Any], return_exceptions: bool) -> Awaitable[list[Any]]: ...


class _Running:
    """Keys that one caller loads together."""

    def __init__(self) -> None:
        self.has_ended = anyio.Event()
        # Results and errors by key; empty if the caller has left.
        self.outcomes: dict[Hashable, Any] = {}


class Loader(Generic[T, R]):
    """Loads items by a batched function, each once, for the time of one request to a server.

    ``users = shoal.Loader(fetch_users)``, then ``await users.load(7)`` from any task of the event
    loop. Its calls share batches with those of all other callers. Results are kept as long as the
    loader, without a limit, so make a loader for each request: that takes a microsecond.

    Args:
        call: A batched function, the call of a `Batcher`, or a handle; not one that streams.
        key: A function of an item that returns its key. Items with equal keys are loaded once.
            None: an item is its own key.

    Raises:
        TypeError: `call` can't be called with many items, or `key` is not a function.
    """

    __slots__ = ("_call", "_given_key", "_known")

    @overload
    def __init__(
        self, call: Callable[[T], Awaitable[R]], *, key: Callable[[T], Hashable] | None = None
    ) -> None: ...
    @overload
    def __init__(self, call: _Mappable, *, key: Callable[[T], Hashable] | None = None) -> None: ...
    def __init__(self, call: Any, *, key: Callable[[T], Hashable] | None = None) -> None:
        if not callable(getattr(call, "map", None)):
            raise TypeError(
                f"a Loader takes a batched function of one item, not {call!r}; decorate a function "
                "of a list with @shoal.batch"
            )
        if not (key is None or callable(key)):
            raise TypeError(f"key must be a function of an item, not {key!r}")
        self._call = call
        self._given_key = key
        self._known: dict[Hashable, Any] = {}  # results, and the `_Running` of others

    async def load(self, item: T) -> R:
        """Returns the result of an item, which is loaded unless it is known.

        Raises:
            TypeError: The key of the item is not hashable.
            Exception: The error of the call, for each caller its own copy. It is not remembered.

        Cancellation: other callers that wait for this item are not affected. Checkpoint: always.
        """
        (outcome,) = await self.load_many([item])
        try:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            del outcome  # the traceback of an error holds this frame

    async def load_many(self, items: Iterable[T]) -> list[R | Exception]:
        """Returns the results of several items in their order, with errors in their places.

        Raises:
            TypeError: The key of an item is not hashable; then nothing is loaded.

        Cancellation and checkpoint: as for `load`.
        """
        keys: list[Hashable] = []
        missing: dict[Hashable, T] = {}
        for item in items:
            keys.append(key := self._key(item))
            missing.setdefault(key, item)
        outcomes: dict[Hashable, Any] = {}
        await checkpoint()
        while missing:
            outcomes.update(await self._load(missing))
            missing = {key: item for key, item in missing.items() if key not in outcomes}
        return [outcomes[key] for key in keys]

    def prime(self, item: T, result: R) -> None:
        """Remembers a result that you have, unless the item is known or being loaded."""
        self._known.setdefault(self._key(item), result)

    def clear(self, item: T) -> None:
        """Forgets the result of an item, which may have changed; those who wait still get it."""
        self._known.pop(self._key(item), None)

    def clear_all(self) -> None:
        """Forgets all results."""
        self._known.clear()

    async def _load(self, items: dict[Hashable, T]) -> dict[Hashable, Any]:
        """Returns the outcomes, but not of keys whose caller has left."""
        outcomes: dict[Hashable, Any] = {}
        of_others: dict[Hashable, _Running] = {}
        mine: dict[Hashable, T] = {}
        # A handler that waited for a call of its own batch would wait forever.
        may_wait = not any(True for _ in waiting_batches())
        for key, item in items.items():
            known = self._known.get(key, _UNKNOWN)
            if known is _UNKNOWN:
                mine[key] = item
            elif not isinstance(known, _Running):
                outcomes[key] = known
            elif may_wait and not known.has_ended.is_set():
                of_others[key] = known
            else:
                mine[key] = item
        if mine:
            outcomes.update(await self._load_mine(mine))
        for key, running in of_others.items():
            await running.has_ended.wait()
            if key in running.outcomes:
                found = running.outcomes[key]
                outcomes[key] = own_copy(found) if isinstance(found, Exception) else found
        return outcomes

    async def _load_mine(self, items: dict[Hashable, T]) -> dict[Hashable, Any]:
        running = _Running()
        try:
            self._known.update(dict.fromkeys(items, running))
            results = await self._call.map(list(items.values()), return_exceptions=True)
            running.outcomes = dict(zip(items, results, strict=True))
        except Exception as error:  # no call was made
            running.outcomes = dict.fromkeys(items, error)
        finally:
            running.has_ended.set()
            for key in items:
                if self._known.get(key) is running:  # it was not cleared
                    del self._known[key]
                    outcome = running.outcomes.get(key, _UNKNOWN)
                    if outcome is not _UNKNOWN and not isinstance(outcome, Exception):
                        self._known[key] = outcome
        return running.outcomes

    def _key(self, item: T) -> Hashable:
        # 1, 1.0 and True are equal, but not the same item.
        key = (type(item), item) if self._given_key is None else self._given_key(item)
        try:
            hash(key)
        except TypeError:
            raise TypeError(
                f"the key of {item!r:.80} is not hashable; pass a function that returns one, such "
                "as Loader(call, key=lambda item: item.id)"
            ) from None
        return key
