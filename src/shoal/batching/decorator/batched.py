"""What `shoal.batch` returns: a function of one item, which finds the batcher open for it."""

from __future__ import annotations

from functools import update_wrapper
from inspect import getattr_static
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, cast

from shoal.batching.calls.call import StreamCall, UnaryCall
from shoal.batching.calls.entry import raised
from shoal.batching.calls.stream import ResultStream, late_stream
from shoal.core.forming.call_options import NO_CALL_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Unpack

    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.entry import Entry
    from shoal.batching.calls.intake import Intake
    from shoal.batching.decorator.registry import Opening
    from shoal.batching.decorator.watches import Watches
    from shoal.batching.loops.event_loop import EventLoop
    from shoal.core.forming.call_options import CallOptions
    from shoal.core.options.options import OptionKeywords
    from shoal.core.request import Request

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
MISSING: Final = object()
"""Stands for an argument that was not passed."""


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


class Decorated:
    """The common base of decorated functions and generators."""

    def _decorate(self, opening: Opening) -> None:
        self._opening = opening
        self._call_options: CallOptions | None = None
        self._receiver: object = None
        # The entries of the batchers open for this object, by thread. It stays empty if a block has
        # opened one for an instance: this object keeps the instance, but the batcher must not.
        self._here = opening.entries
        update_wrapper(cast("Callable[..., Any]", self), opening.handler.function)
        self.__signature__ = opening.call_signature
        opening.face = self

    def bound_to(self, receiver: object) -> Self:
        """Returns this method for one receiver, as a new object."""
        cls = type(self)
        face = cls.__new__(cls)
        own: dict[str, Any] = {"_receiver": receiver, "_here": {}}
        own["__signature__"] = self._opening.bound_signature
        face.__dict__ = {**self.__dict__, **own}
        return face

    def __set_name__(self, owner: type, name: str) -> None:
        opening = self._opening
        opening.is_method = not (opening.is_static or opening.is_class_method)

    @property
    def batcher(self) -> Batcher[Any]:
        """The batcher that is open for this function in this event loop.

        Raises:
            NotOpen: None is.
        """
        return self._opening.found(self._receiver).batcher

    def configure(self, **changes: Unpack[OptionKeywords]) -> None:
        """Changes several options together, for all batchers opened for this function later.

        If a batcher is open in this event loop, the options apply to it too, from its next batch
        on. From a thread without an event loop, such as that of a plain ``reconfigure()``, they
        apply to all open batchers soon after.

        So it may be called before a batcher is open, such as for a method of ``self`` in a
        constructor, and the options outlive the batcher. For a method it sets the options of this
        instance only. See `Batcher.configure` for which batch is the next.

        Args:
            **changes: As in `BatchOptions`; options that are not named stay as they are.

        Raises:
            TypeError: A name is no option, or a value has the wrong type; nothing is changed.
            ValueError: A value is out of its range; nothing is changed.
        """
        self._opening.configure(self._receiver, changes)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Changes ``max_batch_size`` as `configure` does; Ray Serve's name for it."""
        self.configure(max_batch_size=max_batch_size)

    def set_batch_wait_timeout_s(self, batch_wait_timeout_s: float | None) -> None:
        """Changes ``batch_wait_timeout_s``, in seconds, as `configure` does; Ray Serve's name."""
        self.configure(batch_wait_timeout_s=batch_wait_timeout_s)

    def get_max_batch_size(self) -> int:
        """Returns ``max_batch_size``: of the batcher in this event loop, or of the next one."""
        return self._opening.options(self._receiver).max_batch_size

    def get_batch_wait_timeout_s(self) -> float | None:
        """Returns ``batch_wait_timeout_s``, in seconds: of the batcher here, or of the next one."""
        return self._opening.options(self._receiver).batch_wait_timeout_s

    @property
    def watches(self) -> Watches | None:
        """Who observes the batchers of this function; None for a method of one instance."""
        is_bound = self._opening.is_method and self._receiver is not None
        return None if is_bound else self._opening.watches

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Returns the context manager that keeps a batcher open for this function."""
        return self._opening.opened(self._receiver, self)

    def lent(self, batcher: Batcher[Any]) -> AbstractContextManager[None]:
        """Returns the context manager that routes calls of this function to another batcher.

        That batcher has the same handler, and its owner keeps it open meanwhile.
        """
        return self._opening.lent(self._receiver, self, batcher)

    def enter_at(self, entry: Entry) -> None:
        """Sets the entry for calls in this thread."""
        self._here[get_ident()] = entry

    def enter_no_more(self, entry: Entry) -> None:
        """Removes an entry; calls do not use it any more."""
        for thread, there in tuple(self._here.items()):
            if there is entry:
                del self._here[thread]

    def parts(self) -> tuple[Callable[..., Any], Callable[..., Any] | None, dict[str, Any]]:
        """Returns the handler, the function with the signature of calls, and the options."""
        return self._opening.parts(self._receiver)

    def bound(self, receiver: object) -> Any:
        """Returns this method for one receiver."""
        opening = self._opening
        if receiver is None or opening.is_static:
            return self
        found = opening.in_thread(receiver)
        if found is None or found.face is None:
            return self.bound_to(receiver)
        # While it is open there is one object for it, so that method calls need not create any.
        return found.face

    def _find(self) -> Entry:
        """Returns the entry for calls of this object.

        Raises:
            NotOpen: Nothing is open for it.
        """
        return self._entry_for(self._receiver)

    def _loops(self) -> list[EventLoop]:
        return self._opening.loops(self._receiver)

    def _entry_for(self, receiver: object) -> Entry:
        found = self._opening.found(receiver)
        if found.face is None:
            return cast("Entry", KeepingEntry(found.entry, receiver))
        return found.entry

    def _elsewhere(self, args: tuple[Any, ...]) -> tuple[Entry, tuple[Any, ...]]:
        """Returns the entry for a call if no batcher is open for this object itself.

        One may be open for another object of the same bound method, or the call has the form
        ``Class.method(instance, item)``; or a block opens one.

        Returns:
            The entry, and the call's arguments without the receiver.

        Raises:
            NotOpen: Nothing is open for this call.
        """
        if self._receiver is None and self._has_receiver(args):
            return self._entry_for(args[0]), args[1:]
        return self._find(), args

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

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Checks the arguments of a call for which nothing is open."""
        self.__signature__.bind(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<batched {self._opening.handler.name}>"


class BatchedFunction(Decorated, UnaryCall[P, R]):
    """A function of one item, made by `shoal.batch` from a handler of a list.

    Raises: as `UnaryCall`.
    """

    def __init__(self, opening: Opening) -> None:
        self._decorate(opening)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
            """Makes one call; await what it returns."""
            ...

    else:

        def __call__(self, item: Any = MISSING, /, *args: Any, **kwargs: Any) -> Any:
            """Makes one call; await what it returns."""
            # The usual call has one positional argument; to collect it in a tuple is 1 % of a call.
            try:
                entry = self._here[get_ident()]
            except KeyError:
                return self._call_elsewhere(_all(item, args), kwargs)
            if args or kwargs or item is MISSING:
                return entry.begin(_all(item, args), kwargs, None)
            bare_call = entry.bare_call
            if bare_call is not None:
                return bare_call(item, None)  # straight to the queue
            if entry.takes_single_items:
                try:
                    options = entry.options_factory.of(item, NO_CALL_OPTIONS, entry.now())
                except Exception as error:
                    return raised(error)
                return entry.call(item, options)
            return entry.begin((item,), kwargs, None)

    def _call_elsewhere(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, R]:
        """Makes a call for which this object itself has no entry in this thread."""
        try:
            entry, rest = self._elsewhere(args)
        except Exception:
            self._check(args, kwargs)
            self._opening.check_loop(self._receiver)
            return self._call_later(args, kwargs)
        return entry.begin(rest, kwargs, None)

    async def _call_later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Makes a call when it is awaited, because no batcher was open when it was called."""
        entry, rest = self._elsewhere(args)
        result: R = await entry.begin(rest, kwargs, None)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        bound: Self = self.bound(owner if self._opening.is_class_method else instance)
        return bound


class BatchedGenerator(Decorated, StreamCall[P, R]):
    """A function of one item with a stream of results; `shoal.batch` of a generator handler.

    Raises: as `StreamCall`.
    """

    def __init__(self, opening: Opening) -> None:
        self._decorate(opening)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultStream[R]:
        """Prepares one call; it is made when the stream is entered."""
        entry = self._here.get(get_ident())
        if entry is not None:
            if len(args) == 1 and not kwargs and entry.bare_call is not None:
                return ResultStream(entry.intake, args[0], None)  # the usual call
            return entry.begin_stream(args, kwargs, None)
        try:
            entry, rest = self._elsewhere(args)
        except Exception:
            self._check(args, kwargs)
            self._opening.check_loop(self._receiver)
            return late_stream(lambda: self._entered(args, kwargs))
        return entry.begin_stream(rest, kwargs, None)

    def _entered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Intake, Request]:
        """Makes the request of a stream when it is entered."""
        entry, rest = self._elsewhere(args)
        return entry.entered(rest, kwargs, None)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        bound: Self = self.bound(owner if self._opening.is_class_method else instance)
        return bound


def _all(item: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the positional arguments of a call."""
    return args if item is MISSING else (item, *args)
