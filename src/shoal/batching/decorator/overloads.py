"""The types of what `shoal.batch` returns, for type checkers.

A type can't express "the handler's parameters, each without its list", so there is an overload for
each number of parameters up to three. For more, and for names and defaults, use ``signature=``.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from shoal.batching.calls.stream import Answer, ListAnswer, ListSteps, N, ResultStream, Steps
    from shoal.batching.decorator.batched import BatchedFunction, BatchedGenerator
    from shoal.batching.open_batch import OpenBatch

P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)


class BatchedMethod(Protocol[S_contra, P, R]):
    """A batched handler in a class, for type checkers: each instance has its own call."""

    def __call__(
        self, receiver: S_contra, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> BatchedMethod[S_contra, P, R]: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None) -> BatchedFunction[P, R]: ...


class BatchedGeneratorMethod(Protocol[S_contra, P, R]):
    """A batched generator handler in a class, for type checkers."""

    def __call__(
        self, receiver: S_contra, /, *args: P.args, **kwargs: P.kwargs
    ) -> ResultStream[R]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> BatchedGeneratorMethod[S_contra, P, R]: ...
    @overload
    def __get__(self, instance: S_contra, owner: type | None = None) -> BatchedGenerator[P, R]: ...


class Decorator(Protocol):
    """The return type of `batch` with options only: it decorates a handler."""

    # fmt: off
    @overload
    def __call__(self, handler: Callable[[list[A]], ListSteps[R, N]], /) -> BatchedGenerator[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A]], ListAnswer[R, N]], /) -> BatchedFunction[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B], list[C]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B], list[C]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: Callable[[list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A]], ListSteps[R, N]] | Callable[[type[S], list[A]], ListSteps[R, N]], /) -> BatchedGenerator[[A], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A]], Steps[R]] | Callable[[type[S], list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A]], ListAnswer[R, N]] | Callable[[type[S], list[A]], ListAnswer[R, N]], /) -> BatchedFunction[[A], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A]], Answer[R]] | Callable[[type[S], list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B]], ListSteps[R, N]] | Callable[[type[S], list[A], list[B]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B]], Steps[R]] | Callable[[type[S], list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B]], ListAnswer[R, N]] | Callable[[type[S], list[A], list[B]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B]], Answer[R]] | Callable[[type[S], list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B], list[C]], ListSteps[R, N]] | Callable[[type[S], list[A], list[B], list[C]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B], list[C]], Steps[R]] | Callable[[type[S], list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B], list[C]], ListAnswer[R, N]] | Callable[[type[S], list[A], list[B], list[C]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [list[A], list[B], list[C]], Answer[R]] | Callable[[type[S], list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...
    @overload
    def __call__(self, handler: Callable[[], ListSteps[R, N]], /) -> BatchedGenerator[[], R]: ...
    @overload
    def __call__(self, handler: Callable[[], Steps[R]], /) -> BatchedGenerator[[], R]: ...
    @overload
    def __call__(self, handler: Callable[[], ListAnswer[R, N]], /) -> BatchedFunction[[], R]: ...
    @overload
    def __call__(self, handler: Callable[[], Answer[R]], /) -> BatchedFunction[[], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A]], ListSteps[R, N]], /) -> BatchedGeneratorMethod[S, [A], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A]], ListAnswer[R, N]], /) -> BatchedMethod[S, [A], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A]], Answer[R]], /) -> BatchedMethod[S, [A], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B]], ListSteps[R, N]], /) -> BatchedGeneratorMethod[S, [A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B]], ListAnswer[R, N]], /) -> BatchedMethod[S, [A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B]], Answer[R]], /) -> BatchedMethod[S, [A, B], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B], list[C]], ListSteps[R, N]], /) -> BatchedGeneratorMethod[S, [A, B, C], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B], list[C]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B, C], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B], list[C]], ListAnswer[R, N]], /) -> BatchedMethod[S, [A, B, C], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, list[A], list[B], list[C]], Answer[R]], /) -> BatchedMethod[S, [A, B, C], R]: ...
    # fmt: on


class OpenDecorator(Protocol):
    """The return type of `batch` with ``fill="open"`` or ``"continuous"``."""

    # fmt: off
    @overload
    def __call__(self, handler: Callable[[OpenBatch[A, R]], Awaitable[None]], /) -> BatchedFunction[[A], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [OpenBatch[A, R]], Awaitable[None]] | Callable[[type[S], OpenBatch[A, R]], Awaitable[None]], /) -> BatchedFunction[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, OpenBatch[A, R]], Awaitable[None]], /) -> BatchedMethod[S, [A], R]: ...
    # fmt: on


class OpenStreamDecorator(Protocol):
    """The return type of `batch` with ``fill="open"`` or ``"continuous"``, and ``streams=True``."""

    # fmt: off
    @overload
    def __call__(self, handler: Callable[[OpenBatch[A, R]], Awaitable[None]], /) -> BatchedGenerator[[A], R]: ...
    @overload
    def __call__(self, handler: classmethod[Any, [OpenBatch[A, R]], Awaitable[None]] | Callable[[type[S], OpenBatch[A, R]], Awaitable[None]], /) -> BatchedGenerator[[A], R]: ...
    @overload
    def __call__(self, handler: Callable[[S, OpenBatch[A, R]], Awaitable[None]], /) -> BatchedGeneratorMethod[S, [A], R]: ...
    # fmt: on


class DecoratorOf(Protocol[P, R]):
    """The return type of `batch` with ``signature=``: calls have that function's parameters."""

    @overload
    def __call__(self, handler: Callable[..., Steps[Any]], /) -> BatchedGenerator[P, R]: ...
    @overload
    def __call__(self, handler: Callable[..., Answer[Any]], /) -> BatchedFunction[P, R]: ...


class OpenDecoratorOf(Protocol[P, R]):
    """The return type of `batch` with ``signature=`` and ``fill="open"`` or ``"continuous"``."""

    def __call__(self, handler: Callable[..., Awaitable[None]], /) -> BatchedFunction[P, R]: ...


class OpenStreamDecoratorOf(Protocol[P, R]):
    """The return type of `batch` with ``signature=``, an open ``fill``, and ``streams=True``."""

    def __call__(self, handler: Callable[..., Awaitable[None]], /) -> BatchedGenerator[P, R]: ...
