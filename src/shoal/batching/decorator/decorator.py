"""`shoal.batch` turns a handler of a list into a function of one item; `open_batchers` opens it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncContextDecorator, AsyncExitStack
from functools import partial
from inspect import getattr_static
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from shoal.batching.current import refuse_own_handler
from shoal.batching.decorator.batched import BatchedFunction, BatchedGenerator, Decorated
from shoal.batching.decorator.block import BatcherBlock
from shoal.batching.decorator.registry import Opening

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType
    from typing import Unpack

    from shoal.batching.calls.stream import Answer, ListAnswer, ListSteps, N, Steps
    from shoal.batching.decorator.overloads import (
        BatchedGeneratorMethod,
        BatchedMethod,
        Decorator,
        DecoratorOf,
        OpenDecorator,
        OpenStreamDecorator,
    )
    from shoal.batching.handlers.handler import Fill
    from shoal.core.options.options import OptionKeywords

P = ParamSpec("P")
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")


# fmt: off
@overload
def batch(handler: Callable[[list[A]], ListSteps[R, N]], /) -> BatchedGenerator[[A], R]: ...
@overload
def batch(handler: Callable[[list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...
@overload
def batch(handler: Callable[[list[A]], ListAnswer[R, N]], /) -> BatchedFunction[[A], R]: ...
@overload
def batch(handler: Callable[[list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B], list[C]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B, C], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B], list[C]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B, C], R]: ...
@overload
def batch(handler: Callable[[list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A]], ListSteps[R, N]] | Callable[[type[S], list[A]], ListSteps[R, N]], /) -> BatchedGenerator[[A], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A]], Steps[R]] | Callable[[type[S], list[A]], Steps[R]], /) -> BatchedGenerator[[A], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A]], ListAnswer[R, N]] | Callable[[type[S], list[A]], ListAnswer[R, N]], /) -> BatchedFunction[[A], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A]], Answer[R]] | Callable[[type[S], list[A]], Answer[R]], /) -> BatchedFunction[[A], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B]], ListSteps[R, N]] | Callable[[type[S], list[A], list[B]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B]], Steps[R]] | Callable[[type[S], list[A], list[B]], Steps[R]], /) -> BatchedGenerator[[A, B], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B]], ListAnswer[R, N]] | Callable[[type[S], list[A], list[B]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B]], Answer[R]] | Callable[[type[S], list[A], list[B]], Answer[R]], /) -> BatchedFunction[[A, B], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B], list[C]], ListSteps[R, N]] | Callable[[type[S], list[A], list[B], list[C]], ListSteps[R, N]], /) -> BatchedGenerator[[A, B, C], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B], list[C]], Steps[R]] | Callable[[type[S], list[A], list[B], list[C]], Steps[R]], /) -> BatchedGenerator[[A, B, C], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B], list[C]], ListAnswer[R, N]] | Callable[[type[S], list[A], list[B], list[C]], ListAnswer[R, N]], /) -> BatchedFunction[[A, B, C], R]: ...
@overload
def batch(handler: classmethod[Any, [list[A], list[B], list[C]], Answer[R]] | Callable[[type[S], list[A], list[B], list[C]], Answer[R]], /) -> BatchedFunction[[A, B, C], R]: ...
@overload
def batch(handler: Callable[[], ListSteps[R, N]], /) -> BatchedGenerator[[], R]: ...
@overload
def batch(handler: Callable[[], Steps[R]], /) -> BatchedGenerator[[], R]: ...
@overload
def batch(handler: Callable[[], ListAnswer[R, N]], /) -> BatchedFunction[[], R]: ...
@overload
def batch(handler: Callable[[], Answer[R]], /) -> BatchedFunction[[], R]: ...
@overload
def batch(handler: Callable[[S, list[A]], ListSteps[R, N]], /) -> BatchedGeneratorMethod[S, [A], R]: ...
@overload
def batch(handler: Callable[[S, list[A]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A], R]: ...
@overload
def batch(handler: Callable[[S, list[A]], ListAnswer[R, N]], /) -> BatchedMethod[S, [A], R]: ...
@overload
def batch(handler: Callable[[S, list[A]], Answer[R]], /) -> BatchedMethod[S, [A], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B]], ListSteps[R, N]], /) -> BatchedGeneratorMethod[S, [A, B], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B]], ListAnswer[R, N]], /) -> BatchedMethod[S, [A, B], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B]], Answer[R]], /) -> BatchedMethod[S, [A, B], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B], list[C]], ListSteps[R, N]], /) -> BatchedGeneratorMethod[S, [A, B, C], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B], list[C]], Steps[R]], /) -> BatchedGeneratorMethod[S, [A, B, C], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B], list[C]], ListAnswer[R, N]], /) -> BatchedMethod[S, [A, B, C], R]: ...
@overload
def batch(handler: Callable[[S, list[A], list[B], list[C]], Answer[R]], /) -> BatchedMethod[S, [A, B, C], R]: ...
@overload
def batch(*, fill: Literal["open", "continuous"], streams: Literal[False] = False, **options: Unpack[OptionKeywords]) -> OpenDecorator: ...
@overload
def batch(*, fill: Literal["open", "continuous"], streams: Literal[True], **options: Unpack[OptionKeywords]) -> OpenStreamDecorator: ...
@overload
def batch(*, signature: Callable[P, R], fill: Literal["open", "continuous"], streams: Literal[False] = False, **options: Unpack[OptionKeywords]) -> Callable[[Callable[..., Awaitable[None]]], BatchedFunction[P, R]]: ...
@overload
def batch(*, signature: Callable[P, R], fill: Literal["open", "continuous"], streams: Literal[True], **options: Unpack[OptionKeywords]) -> Callable[[Callable[..., Awaitable[None]]], BatchedGenerator[P, R]]: ...
@overload
def batch(*, signature: Callable[P, R], fill: Literal["closed"] = "closed", streams: Literal[False] = False, **options: Unpack[OptionKeywords]) -> DecoratorOf[P, R]: ...
@overload
def batch(**options: Unpack[OptionKeywords]) -> Decorator: ...
# fmt: on
def batch(
    handler: Any = None,
    /,
    *,
    signature: Callable[..., Any] | None = None,
    fill: Fill = "closed",
    streams: bool = False,
    **options: Any,
) -> Any:
    """Turns a handler, a function of a list, into a function of one item.

    Use it bare, ``@shoal.batch``, or with options, ``@shoal.batch(max_batch_size=64)``, on a
    function, a method, a coroutine function, or a generator function of either kind; in a class put
    it above ``@classmethod`` or ``@staticmethod``. The decorated function is called with one item
    while its batcher is open (`open_batchers`), and returns that item's own result. A method is
    batched separately for each instance.

    Args:
        handler: A function that takes a list of items and returns as many results, in the same
            order; a generator function yields one slot for each item in every step. With several
            parameters it takes a list for each; without parameters it returns as many results as
            `current_batch` has requests.
        signature: A function of one item, which is never called. The call has its parameter names,
            types and defaults, and its result type; for streams, the type of an item. Use it where
            type checkers can't see these in the handler: names, defaults, more than three
            parameters, and, for mypy, results of several types in a list with exceptions::

                def parse(text: str, base: int = 10) -> int | str: ...

                @shoal.batch(signature=parse)
                async def parse_all(
                    text: list[str], base: list[int]
                ) -> list[int | str | ValueError]: ...
        fill: ``"closed"`` passes complete batches to the handler. With ``"open"`` it starts when
            the first request arrives and gets later ones as they arrive; with ``"continuous"`` it
            takes requests between its steps for as long as the batcher is open. For both it is an
            async function of an `OpenBatch`.
        streams: Whether an open or continuous handler answers calls with streams.
        **options: As in `BatchOptions`.

    Returns:
        The function of one item: awaited for a result, or returning a `ResultStream` if the handler
        is a generator function.

    Raises:
        TypeError: The handler is not a function of a list, for example if a parameter's annotation
            does not allow a list; or an option is unknown or has the wrong type.
        ValueError: An option is out of its range.
    """
    if handler is None:
        decorate: Any = batch  # no overload takes options of unknown types
        return partial(decorate, signature=signature, fill=fill, streams=streams, **options)
    opening = Opening(handler, signature, options, fill=fill, streams=streams)
    if opening.handler.streams:
        return BatchedGenerator[..., Any](opening)
    return BatchedFunction[..., Any](opening)


def open_batchers(*batched: Any) -> AbstractAsyncContextManager[None]:
    """Opens batchers in this event loop for the duration of a block.

    Without arguments each batched function or method is opened at its first call in this event
    loop, in the nursery and context of the block, whichever task calls it. An instance's methods
    stay open until the instance is collected. A program's ``main`` needs only this::

        async with shoal.open_batchers():
            ...

    Leaving such a block refuses calls from outside, finishes queued and running requests and the
    calls that running handlers make, and then closes all batchers.

    With arguments it opens only those batchers. They are closed in reverse order, so list a function that
    other handlers call first. Leaving the block stops intake and runs the queued requests. In both
    cases requests that have not ended after ``graceful_shutdown_timeout_s`` are cancelled. Every
    call ends with a result or an error.

    Args:
        *batched: Functions decorated with `batch`, methods of instances, or instances, for all of
            their batched methods: ``open_batchers(embed, model.predict, other_model)``.

    Raises:
        TypeError: One of them is not decorated with `batch`, and has no batched methods.
        RuntimeError: One of them is open in this event loop already, in another block that names
            it.

    Raises (on leaving): `WouldDeadlock` in a handler that the block waits for, at once.

    Cancellation: while the block is being cancelled, batchers keep running until it is left, so
    that clean-up code gets results; then callers fail with `BatcherClosed`.
    """
    return _OpenBatchers(batched)


class _OpenBatchers(AbstractAsyncContextManager[None], AsyncContextDecorator):
    def __init__(self, batched: tuple[Any, ...]) -> None:
        self._batched = batched

    def _recreate_cm(self) -> _OpenBatchers:
        return _OpenBatchers(self._batched)  # calls of a decorated function may overlap

    async def __aenter__(self) -> None:
        faces = [face for one in self._batched for face in _faces_of(one)]
        async with AsyncExitStack() as stack:
            blocks: list[Any] = [face.opened() for face in faces] or [BatcherBlock()]
            self._opened = [await stack.enter_async_context(block) for block in blocks]
            self._exit = stack.pop_all()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        # Before any of them is left: leaving goes on when it has begun.
        refuse_own_handler(
            "shoal.open_batchers()", lambda batch: any(one.runs(batch) for one in self._opened)
        )
        return await self._exit.__aexit__(kind, error, traceback)


def _faces_of(batched: Any) -> Iterator[Decorated]:
    if isinstance(batched, Decorated):
        yield batched
        return
    under = getattr(batched, "__func__", None)
    if isinstance(batched, MethodType) and isinstance(under, Decorated):
        # The result of @classmethod above @shoal.batch since Python 3.13.
        yield under.bound(batched.__self__)
        return
    cls = type(cast("object", batched))
    methods = [name for name in dir(cls) if isinstance(getattr_static(cls, name), Decorated)]
    own = [name for name in methods if getattr(batched, name) is not getattr(cls, name)]
    if isinstance(batched, type) or not own:
        raise TypeError(
            "open_batchers() takes functions decorated with @shoal.batch, and instances that have "
            f"such methods, not {batched!r}; a handler that is not decorated is opened with: "
            "async with shoal.Batcher(handler) as call:"
        )
    for name in own:
        face = getattr(batched, name)
        if face._receiver is batched:
            yield face
