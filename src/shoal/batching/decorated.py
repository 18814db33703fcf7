"""What `shoal.batch` makes: a function of one item, which finds the batcher that is open for it."""

from __future__ import annotations

from functools import update_wrapper
from threading import get_ident
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from shoal.batching.calls import StreamCall, UnaryCall
from shoal.core.terms import NO_WISHES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from shoal.batching.batcher import Batcher
    from shoal.batching.entry import Entry
    from shoal.batching.opening import Opening
    from shoal.batching.stream import ResultStream

P = ParamSpec("P")
R = TypeVar("R")


class Decorated:
    """What decorated functions and generators have in common."""

    def _decorate(self, opening: Opening, receiver: object) -> None:
        self._opening = opening
        self._receiver = receiver
        # Where calls enter the batchers that were opened through this object, by thread.
        self._here: dict[int, Entry] = {}
        update_wrapper(cast("Callable[..., Any]", self), opening.handler.function)
        self.__signature__ = opening.signature_for(receiver)

    @property
    def batcher(self) -> Batcher[Any]:
        """The batcher that is open for this function in this event loop.

        Raises:
            NotOpen: None is.
        """
        return self._opening.found(self._receiver).batcher

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Changes ``max_batch_size`` of the open batcher, from the next batch on.

        Raises:
            NotOpen: None is open in this event loop.
        """
        self.batcher.set_max_batch_size(max_batch_size)

    def set_batch_wait_timeout_s(self, batch_wait_timeout_s: float | None) -> None:
        """Changes ``batch_wait_timeout_s`` of the open batcher, from the next batch on.

        Raises:
            NotOpen: None is open in this event loop.
        """
        self.batcher.set_batch_wait_timeout_s(batch_wait_timeout_s)

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Returns the context manager that keeps a batcher open for this function."""
        return self._opening.opened(self._receiver, cast("Callable[..., Any]", self), self._here)

    def lent(self, batcher: Batcher[Any]) -> AbstractContextManager[None]:
        """Returns the context manager that has calls of this function enter another batcher.

        It serves the same handler, and whoever runs it keeps it open meanwhile.
        """
        face = cast("Callable[..., Any]", self)
        return self._opening.lent(self._receiver, face, self._here, batcher)

    def parts(self) -> tuple[Callable[..., Any], Callable[..., Any] | None, dict[str, Any]]:
        """Returns the handler, the function that says what a call looks like, and the options."""
        return self._opening.parts(self._receiver)

    def bound(self, receiver: object) -> Any:
        """Returns this method for one receiver."""
        opening = self._opening
        if receiver is None or opening.is_static:
            return self
        found = opening.table.get(opening.key(receiver))
        # While it is open there is one object for it, so that a call of a method makes none.
        return cast("Any", type(self))(opening, receiver) if found is None else found.face

    def _elsewhere(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        """Returns what to call where this object itself was not opened, but another form of it was.

        That is another object for the same bound method, or ``Class.method(instance, item)``.

        Raises:
            NotOpen: Nothing was opened for this call.
        """
        opening = self._opening
        if self._receiver is not None:
            return opening.found(self._receiver).face
        if args and opening.key(args[0]) in opening.table:
            face = opening.found(args[0]).face

            def call_method(_receiver: object, *args: Any, **kwargs: Any) -> Any:
                return face(*args, **kwargs)

            return call_method
        raise opening.not_open(self._receiver)

    def __repr__(self) -> str:
        return f"<batched {self._opening.handler.name}>"


class BatchedFunction(Decorated, UnaryCall[P, R]):
    """A function of one item, made by `shoal.batch` from a handler of a list.

    Raises: as `UnaryCall`.
    """

    def __init__(self, opening: Opening, receiver: object = None) -> None:
        super().__init__(lambda: opening.found(receiver).entry)
        self._decorate(opening, receiver)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Makes one call; await what it returns."""
        entry = self._here.get(get_ident())
        if entry is None:
            elsewhere: Coroutine[Any, Any, R] = self._elsewhere(args)(*args, **kwargs)
            return elsewhere
        if len(args) == 1 and not kwargs:
            if entry.takes_bare_items:
                return entry.call(args[0], None)  # the usual call, straight to the line
            if entry.takes_single_items:
                return entry.call(args[0], entry.terms.of(args[0], NO_WISHES, entry.now()))
        return entry.begin(args, kwargs, None)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        bound: Self = self.bound(owner if self._opening.is_class_method else instance)
        return bound


class BatchedGenerator(Decorated, StreamCall[P, R]):
    """A function of one item that gives a stream, made by `shoal.batch` from a generator handler.

    Raises: as `StreamCall`.
    """

    def __init__(self, opening: Opening, receiver: object = None) -> None:
        super().__init__(lambda: opening.found(receiver).entry)
        self._decorate(opening, receiver)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultStream[R]:
        """Prepares one call; it is made when the stream is entered."""
        entry = self._here.get(get_ident())
        if entry is None:
            elsewhere: ResultStream[R] = self._elsewhere(args)(*args, **kwargs)
            return elsewhere
        return entry.begin_stream(args, kwargs, None)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        bound: Self = self.bound(owner if self._opening.is_class_method else instance)
        return bound
