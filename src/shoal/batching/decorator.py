"""`shoal.batch`: a handler of a list as a function of one item, and `open_batchers`, which serves it."""

from __future__ import annotations

import functools
from contextlib import AsyncExitStack, asynccontextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from shoal.batching.calls import StreamCall, UnaryCall
from shoal.batching.opening import Opening
from shoal.errors import NotOpen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from shoal.batching.batcher import Batcher
    from shoal.batching.kinds import Answer, Steps
    from shoal.batching.stream import ResultStream
    from shoal.core.options import OptionKeywords

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)
F_co = TypeVar("F_co", covariant=True)


class Decorated:
    """What decorated functions and generators have in common."""

    def __init__(self, opening: Opening, receiver: object) -> None:
        self._opening = opening
        self._receiver = receiver
        if receiver is None:
            functools.update_wrapper(self, opening.handler.function)
            self.__signature__ = opening.handler.binding.signature

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
        return self._opening.opened(self._receiver, self)

    def bound(self, receiver: object) -> Any:
        """Returns this method for one receiver."""
        opening = self._opening
        if receiver is None or opening.is_static:
            return self
        found = opening.table.get(opening.key(receiver))
        # While it is open there is one object for it, so that a call of a method makes none.
        return type(self)(opening, receiver) if found is None else found.face

    def _is_unbound_call(self, args: tuple[Any, ...]) -> bool:
        """Whether this is ``Class.method(instance, item)``, with the instance's batcher open."""
        opening = self._opening
        return self._receiver is None and bool(args) and opening.key(args[0]) in opening.table

    def __repr__(self) -> str:
        return f"<batched {self._opening.handler.name}>"


class BatchedFunction(Decorated, UnaryCall[P, R]):
    """A function of one item, made by `shoal.batch` from a handler of a list.

    Raises: as `UnaryCall`.
    """

    def __init__(self, opening: Opening, receiver: object = None) -> None:
        UnaryCall.__init__(self, opening.finder(receiver))
        Decorated.__init__(self, opening, receiver)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Makes one call; await what it returns."""
        try:
            intake = self._find()
        except NotOpen:
            if self._is_unbound_call(args):
                return self.bound(args[0])(*args[1:], **kwargs)  # type: ignore[no-any-return]
            raise
        return intake.begin(args, kwargs, self._extras)

    def __get__(self, instance: object, owner: type | None = None) -> BatchedFunction[P, R]:
        return self.bound(owner if self._opening.is_class_method else instance)  # type: ignore[no-any-return]


class BatchedGenerator(Decorated, StreamCall[P, R]):
    """A function of one item that gives a stream, made by `shoal.batch` from a generator handler.

    Raises: as `StreamCall`.
    """

    def __init__(self, opening: Opening, receiver: object = None) -> None:
        StreamCall.__init__(self, opening.finder(receiver))
        Decorated.__init__(self, opening, receiver)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ResultStream[R]:
        """Prepares one call; it is made when the stream is entered."""
        try:
            intake = self._find()
        except NotOpen:
            if self._is_unbound_call(args):
                return self.bound(args[0])(*args[1:], **kwargs)  # type: ignore[no-any-return]
            raise
        return intake.begin_stream(args, kwargs, self._extras)

    def __get__(self, instance: object, owner: type | None = None) -> BatchedGenerator[P, R]:
        return self.bound(owner if self._opening.is_class_method else instance)  # type: ignore[no-any-return]


class BatchedMethod(Protocol[S_contra, F_co]):
    """A batched handler in a class, for type checkers: each instance has a call of its own."""

    @overload
    def __get__(self, instance: None, owner: type) -> BatchedMethod[S_contra, F_co]: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None) -> F_co: ...


class Decorator(Protocol):
    """What `batch` gives back for options alone: it decorates a handler."""

    # fmt: off
    @overload
    def __call__(self, handler: Callable[[list[T]], Steps[R]], /) -> BatchedGenerator[[T], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[T]], Answer[R]], /) -> BatchedFunction[[T], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[A, list[T]], Steps[R]], /) -> BatchedMethod[A, BatchedGenerator[[T], R]]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[A, list[T]], Answer[R]], /) -> BatchedMethod[A, BatchedFunction[[T], R]]: ...  # noqa: E501
    # fmt: on


# fmt: off
@overload
def batch(handler: Callable[[list[T]], Steps[R]], /) -> BatchedGenerator[[T], R]: ...
@overload
def batch(handler: Callable[[list[T]], Answer[R]], /) -> BatchedFunction[[T], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...  # noqa: E501
@overload
def batch(handler: Callable[[list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...
@overload
def batch(handler: Callable[[A, list[T]], Steps[R]], /) -> BatchedMethod[A, BatchedGenerator[[T], R]]: ...  # noqa: E501
@overload
def batch(handler: Callable[[A, list[T]], Answer[R]], /) -> BatchedMethod[A, BatchedFunction[[T], R]]: ...  # noqa: E501
@overload
def batch(*, signature: Callable[P, Iterator[R]], **options: Unpack[OptionKeywords]) -> Callable[[Callable[..., Steps[Any]]], BatchedGenerator[P, R]]: ...  # noqa: E501
@overload
def batch(*, signature: Callable[P, R], **options: Unpack[OptionKeywords]) -> Callable[[Callable[..., Answer[Any]]], BatchedFunction[P, R]]: ...  # noqa: E501
@overload
def batch(**options: Unpack[OptionKeywords]) -> Decorator: ...
# fmt: on
def batch(
    handler: Any = None, /, *, signature: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """Turns a handler, a function of a list, into a function of one item.

    Use it bare, ``@shoal.batch``, or with options, ``@shoal.batch(max_batch_size=64)``, on a
    function, a method, a coroutine function, or a generator function of either kind; in a class put
    it above ``@classmethod`` or ``@staticmethod``. What it gives is called with one item while its
    batcher is open (`open_batchers`), and answers with that item's own result. A method is batched
    for each instance apart.

    Args:
        handler: A function that takes a list of items and gives back as many results, in their
            order; a generator function yields one slot for each item in every step. With several
            parameters it takes a list for each.
        signature: A function of one item whose parameter names, types and defaults the call takes,
            where a handler has several parameters and type checkers should know their names.
        **options: As in `BatchOptions`.

    Returns:
        The function of one item: awaited for a result, or giving a `ResultStream` where the handler
        is a generator function.

    Raises:
        TypeError: The handler is no function of a list, or an option is unknown or of a wrong type.
        ValueError: An option is out of its range.
    """
    if handler is None:
        return lambda handler: _decorated(handler, signature, options)
    return _decorated(handler, signature, options)


def _decorated(handler: Any, signature: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
    opening = Opening(handler, signature, options)
    return (BatchedGenerator if opening.handler.streams else BatchedFunction)(opening)


@asynccontextmanager
async def open_batchers(*functions: Any) -> AsyncIterator[None]:
    """Opens the batchers of decorated functions and methods for this event loop.

    They close in reverse order, so a function that others call in their handlers comes first.
    Leaving the block stops intake, runs what is in line, and after ``graceful_shutdown_timeout_s``
    cancels: every caller ends with a result or an error.

    Args:
        *functions: Functions decorated with `batch`, or methods of instances:
            ``open_batchers(embed, model.predict)``.

    Raises:
        TypeError: One of them is not decorated with `batch`.
        RuntimeError: One of them is open in this event loop already.
    """
    faces = [_as_decorated(function) for function in functions]
    async with AsyncExitStack() as stack:
        for face in faces:
            await stack.enter_async_context(face.opened())
        yield


def _as_decorated(function: Any) -> Decorated:
    if isinstance(function, MethodType) and isinstance(function.__func__, Decorated):
        # What @classmethod above @shoal.batch gives from Python 3.13 on.
        function = function.__func__.bound(function.__self__)
    if not isinstance(function, Decorated):
        raise TypeError(
            f"open_batchers() takes functions decorated with @shoal.batch, not {function!r}; "
            "a handler that is not decorated is opened with: async with shoal.Batcher(handler) as call:"
        )
    return function
