"""Finds the batcher for each call of what `shoal.batch` returns.

The usual call has its batcher, or finds it by its thread. This module has the other ways: another
object of the same bound method, a call through the class, a block that opens the batcher; and the
errors if there is none.

A `Lookup` does not refer to the object whose calls it serves: an object for a method keeps its
instance, so it must go when its last reference does.
"""

from __future__ import annotations

from inspect import getattr_static
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from shoal.batching.calls.entry import Entry
    from shoal.batching.calls.intake import Intake
    from shoal.batching.calls.stream import ResultStream
    from shoal.batching.decorator.registry import Opening
    from shoal.batching.loops.event_loop import EventLoop
    from shoal.core.forming.call_options import CallOptions
    from shoal.core.request import Request

T = TypeVar("T")


class KeepingEntry:
    """The entry for a method whose batcher does not keep its instance alive.

    Each call keeps it until it is answered: ``await Model().predict(1)`` has no other reference.
    """

    def __init__(self, entry: Entry, receiver: object) -> None:
        self._entry = entry
        self._receiver = receiver

    def begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], call_options: CallOptions | None
    ) -> Coroutine[Any, Any, Any]:
        """See `Entry.begin`."""
        return self._kept(self._entry.begin(args, kwargs, call_options))

    def begin_map(
        self,
        columns: tuple[Iterable[Any], ...],
        call_options: CallOptions | None,
        *,
        return_exceptions: bool,
    ) -> Coroutine[Any, Any, list[Any]]:
        """See `Entry.begin_map`."""
        entry = self._entry
        return self._kept(
            entry.begin_map(columns, call_options, return_exceptions=return_exceptions)
        )

    def begin_stream(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], call_options: CallOptions | None
    ) -> ResultStream[Any]:
        """See `Entry.begin_stream`."""
        stream = self._entry.begin_stream(args, kwargs, call_options)
        stream.keeps = self._receiver
        return stream

    def entered(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], call_options: CallOptions | None
    ) -> tuple[Intake, Request]:
        """See `Entry.entered`; the caller, who enters the stream later, keeps the instance."""
        return self._entry.entered(args, kwargs, call_options)

    async def _kept(self, call: Coroutine[Any, Any, T]) -> T:
        return await call


class Lookup:
    """Finds the batchers for the calls of one batched object.

    Args:
        opening: Opens and finds the batchers of its function.
        receiver: What its method is bound to; None for a function, and for a method of a class.
    """

    def __init__(self, opening: Opening, receiver: object) -> None:
        self._opening = opening
        self._receiver = receiver

    def find(self) -> Entry:
        """Returns the entry for calls of the object.

        Raises:
            NotOpen: Nothing is open for it.
        """
        return self._entry_for(self._receiver)

    def loops(self) -> list[EventLoop]:
        """Returns the event loops in which a batcher is open for the object."""
        return self._opening.loops(self._receiver)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Checks the arguments of a call for which nothing is open.

        Raises:
            TypeError: They don't fit.
        """
        self._opening.signature_for(self._receiver).bind(*args, **kwargs)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Makes one call if no batcher is open for the object itself; await what it returns.

        Raises:
            TypeError: The arguments don't fit.
            NotOpen: The thread runs no event loop.
        """
        try:
            entry, rest = self.elsewhere(args)
        except Exception:
            self.check(args, kwargs)
            self._opening.check_loop(self._receiver)
            return self._later(args, kwargs)
        return entry.begin(rest, kwargs, None)

    def elsewhere(self, args: tuple[Any, ...]) -> tuple[Entry, tuple[Any, ...]]:
        """Returns the entry for a call if no batcher is open for the object itself.

        One may be open for another object of the same bound method, or the call has the form
        ``Class.method(instance, item)``; or a block opens one.

        Returns:
            The entry, and the call's arguments without the receiver.

        Raises:
            NotOpen: Nothing is open for this call.
        """
        if self._receiver is None and self._has_receiver(args):
            return self._entry_for(args[0]), args[1:]
        return self.find(), args

    async def _later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a call when it is awaited, because no batcher was open when it was called."""
        entry, rest = self.elsewhere(args)
        return await entry.begin(rest, kwargs, None)

    def _entry_for(self, receiver: object) -> Entry:
        found = self._opening.found(receiver)
        if found.face is None:
            return cast("Entry", KeepingEntry(found.entry, receiver))
        return found.entry

    def _has_receiver(self, args: tuple[Any, ...]) -> bool:
        """Returns whether the first argument is the receiver of a method."""
        opening = self._opening
        if not args or opening.is_static:
            return False
        if opening.is_method or opening.in_thread(args[0]) is not None:
            return True
        if not isinstance(args[0], type):
            return False
        name = opening.handler.name.rpartition(".")[2]
        there: Any = getattr_static(args[0], name, None)
        under: object = getattr(there, "__func__", None)
        return isinstance(there, classmethod) and under is opening.face
