"""`shoal.batch` makes a handler of a list a function of one item; `open_batchers` serves it."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, update_wrapper
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, overload

from shoal.batching.calls import StreamCall, UnaryCall
from shoal.batching.opening import Opening

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from shoal.batching.batcher import Batcher
    from shoal.batching.entry import Entry
    from shoal.batching.kinds import Answer, Steps
    from shoal.batching.stream import ResultStream
    from shoal.core.options import OptionKeywords

P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)


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
            return self._elsewhere(args)(*args, **kwargs)  # type: ignore[no-any-return]
        if len(args) == 1 and not kwargs and entry.takes_bare_items:
            return entry.call(args[0], None)  # the usual call, straight to the line
        return entry.begin(args, kwargs, None)

    def __get__(self, instance: object, owner: type | None = None) -> BatchedFunction[P, R]:
        return self.bound(owner if self._opening.is_class_method else instance)  # type: ignore[no-any-return]


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
            return self._elsewhere(args)(*args, **kwargs)  # type: ignore[no-any-return]
        return entry.begin_stream(args, kwargs, None)

    def __get__(self, instance: object, owner: type | None = None) -> BatchedGenerator[P, R]:
        return self.bound(owner if self._opening.is_class_method else instance)  # type: ignore[no-any-return]


class BatchedMethod(Protocol[S_contra, P, R]):
    """A batched handler in a class, for type checkers: each instance has a call of its own."""

    def __call__(
        self, receiver: S_contra, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Makes one call through the class."""
        ...

    @overload
    def __get__(self, instance: None, owner: type) -> BatchedMethod[S_contra, P, R]: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None) -> BatchedFunction[P, R]: ...


class BatchedGeneratorMethod(Protocol[S_contra, P, R]):
    """A batched generator handler in a class, for type checkers."""

    def __call__(self, receiver: S_contra, /, *args: P.args, **kwargs: P.kwargs) -> ResultStream[R]:
        """Prepares one call through the class."""
        ...

    @overload
    def __get__(self, instance: None, owner: type) -> BatchedGeneratorMethod[S_contra, P, R]: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None) -> BatchedGenerator[P, R]: ...


class Decorator(Protocol):
    """What `batch` gives back for options alone: it decorates a handler."""

    # fmt: off
    @overload
    def __call__(self, handler: Callable[[list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: classmethod[Any, [list[A]], Steps[R]] | Callable[[type[S], list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: classmethod[Any, [list[A]], Answer[R]] | Callable[[type[S], list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B]], Steps[R]] | Callable[[type[S], list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B]], Answer[R]] | Callable[[type[S], list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B], list[C]], Steps[R]] | Callable[[type[S], list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B], list[C]], Answer[R]] | Callable[[type[S], list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[S, list[A]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[S, list[A]], Answer[R]], /) -> BatchedMethod[S, [A], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B]], Answer[R]], /) -> BatchedMethod[S, [A, B], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B], list[C]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B, C], R]: ...  # noqa: E501
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B], list[C]], Answer[R]], /) -> BatchedMethod[S, [A, B, C], R]: ...  # noqa: E501
    # fmt: on


class DecoratorOf(Protocol[P, R]):
    """What `batch` gives back for ``signature=``: the call has the parameters of that function."""

    @overload
    def __call__(self, handler: Callable[..., Steps[Any]], /) -> BatchedGenerator[P, R]: ...
    @overload
    def __call__(self, handler: Callable[..., Answer[Any]], /) -> BatchedFunction[P, R]: ...


# fmt: off
@overload
def batch(handler: Callable[[list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...
@overload
def batch(handler: Callable[[list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...  # noqa: E501
@overload
def batch(handler: Callable[[list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...  # noqa: E501
@overload
def batch(handler: classmethod[Any, [list[A]], Steps[R]] | Callable[[type[S], list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...  # noqa: E501
@overload
def batch(handler: classmethod[Any, [list[A]], Answer[R]] | Callable[[type[S], list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...  # noqa: E501
@overload
def batch(handler: classmethod[Any, [list[A], list[B]], Steps[R]] | Callable[[type[S], list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...  # noqa: E501
@overload
def batch(handler: classmethod[Any, [list[A], list[B]], Answer[R]] | Callable[[type[S], list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...  # noqa: E501
@overload
def batch(handler: classmethod[Any, [list[A], list[B], list[C]], Steps[R]] | Callable[[type[S], list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...  # noqa: E501
@overload
def batch(handler: classmethod[Any, [list[A], list[B], list[C]], Answer[R]] | Callable[[type[S], list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...  # noqa: E501
@overload
def batch(handler: Callable[[S, list[A]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A], R]: ...
@overload
def batch(handler: Callable[[S, list[A]], Answer[R]], /) -> BatchedMethod[S, [A], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B], R]: ...  # noqa: E501
@overload
def batch(handler: Callable[[S, list[A], list[B]], Answer[R]], /) -> BatchedMethod[S, [A, B], R]: ...  # noqa: E501
@overload
def batch(handler: Callable[[S, list[A], list[B], list[C]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B, C], R]: ...  # noqa: E501
@overload
def batch(handler: Callable[[S, list[A], list[B], list[C]], Answer[R]], /) -> BatchedMethod[S, [A, B, C], R]: ...  # noqa: E501
@overload
def batch(*, signature: Callable[P, R], **options: Unpack[OptionKeywords]) -> DecoratorOf[P, R]: ...
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
        return partial(_decorated, signature=signature, options=options)
    return _decorated(handler, signature, options)


def _decorated(
    handler: Any, /, signature: Callable[..., Any] | None, options: dict[str, Any]
) -> Decorated:
    opening = Opening(handler, signature, options)
    if opening.handler.streams:
        return BatchedGenerator[..., Any](opening)
    return BatchedFunction[..., Any](opening)


@asynccontextmanager
async def open_batchers(*functions: Any) -> AsyncGenerator[None]:
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
    if isinstance(function, Decorated):
        return function
    under = getattr(function, "__func__", None)
    if isinstance(function, MethodType) and isinstance(under, Decorated):
        # What @classmethod above @shoal.batch gives from Python 3.13 on.
        return cast("Decorated", under.bound(function.__self__))
    raise TypeError(
        f"open_batchers() takes functions decorated with @shoal.batch, not {function!r}; "
        "a handler that is not decorated is opened with: async with shoal.Batcher(handler) as call:"
    )
