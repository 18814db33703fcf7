"""One interface to user functions of all kinds.

A handler is called with lists and returns the results of a whole batch: at once (``results``), or
step by step (``steps``). Coroutine functions and async generators run in the event loop. Plain
functions and plain generators run in worker threads, since they may block. A thread can't be
interrupted, so a cancellation takes effect only when the call, or the generator's step, has ended.

A model object has a handler, too, as in caikit: ``run`` defines the parameters of a call, and
``run_batch`` gets one list for each. The defaults of ``run`` are filled in before requests are
batched, so requests with different keywords share a batch. caikit fills them in for the requests of
each batch. Then the arguments of ``run_batch`` depend on the other requests of the batch, and a
missing argument is not noticed if all requests of the batch lack it.

Async user code runs in a copy of the context (`in_own_context`): a worker slot runs one batch after
the other in one task, and a context variable that a handler sets must not stay set for the next
batch, which has other callers. A task for each batch would cost more than the rest of its work.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import traceback
import weakref
from contextlib import aclosing
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from time import perf_counter
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_args

import anyio

from shoal.batching.handlers.annotations import read_signature
from shoal.batching.handlers.binding import Binding, refuse_unnamed, signature_of_call
from shoal.core.options.option import one_of, yes_or_no
from shoal.errors import WrongResultType
from shoal.loops.unlimited import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from types import CodeType, FrameType


Fill: TypeAlias = Literal["closed", "open", "continuous"]
"""When a batch is complete: before the handler starts, while it runs, or never."""

DONE: Final[Any] = object()

T = TypeVar("T")


class Handler:
    def __init__(
        self,
        function: Callable[..., Any],
        prototype: Callable[..., Any] | None = None,
        *,
        fill: Fill = "closed",
        streams: bool = False,
        binding: Binding | None = None,
        convert_error: Callable[[BaseException], Exception] | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(
                f"a handler must be a function of a list, not {function!r}; write\n"
                "    @shoal.batch\n"
                "    def handler(items: list[T]) -> list[R]: ..."
            )
        if inspect.isclass(function):
            raise TypeError(
                f"a handler must be a function of a list, but {function!r} is a class; "
                f"pass an instance of it, or one of its methods"
            )
        self.function = function
        # Converts an exception of the handler that would end the program to the error that fails
        # its batch; None to let it end the program.
        self.convert_error = convert_error
        self.name = _name(function)
        # Whether it forwards each batch to one of several replicas.
        self.has_replicas = False
        self.fill = one_of("fill", fill, get_args(Fill))
        code = innermost(function)
        is_async = inspect.iscoroutinefunction(code)
        self._async_steps = inspect.isasyncgenfunction(code)
        # Whether it is a generator function, or responds with streams.
        self.streams = self._async_steps or inspect.isgeneratorfunction(code)
        if fill != "closed":
            if not is_async:
                raise TypeError(
                    f"with fill={fill!r} the handler answers each request by itself, so it must be "
                    f"an async function of the batch, not {function!r}; write\n"
                    "    async def handler(batch: shoal.OpenBatch[T, R]) -> None: ..."
                )
            self.streams = yes_or_no("streams", streams)
        elif streams:
            raise TypeError(
                "streams=True is for fill='open' and fill='continuous'; "
                "a handler that streams to closed batches is a generator function"
            )
        self.binding = binding or Binding.of_handler(function, prototype, of_batch=fill != "closed")
        # Whether it runs in worker threads.
        self.threaded = not (is_async or self._async_steps)

    @classmethod
    def of_one(cls, function: Callable[..., Any]) -> Handler:
        """Returns a handler for a function of one item; its batches have one request each."""
        return cls(function, binding=Binding.of_items(signature_of_call(function), "arguments"))

    def refer_weakly(
        self, function: Callable[..., Any], receiver: object, gone: Callable[[object], None]
    ) -> bool:
        """Keeps the receiver of a method by a weak reference from now on, if possible."""
        # `function` is unbound. `gone` is called when the receiver was collected, in any thread.
        try:
            instance = weakref.ref(receiver, gone)
        except TypeError:  # its class has __slots__
            return False

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(instance(), *args, **kwargs)

        named: Any = call  # type checkers don't know the attribute
        named.__signature__ = read_signature(self.function)
        self.function = named
        return True

    async def results(self, items: list[Any]) -> Any:
        """Runs a unary handler; cancellation reaches an async one, and waits for a thread."""
        if self.binding.gives_one_list and not self.threaded:  # the usual case
            return await self.function(items)
        if self.threaded:
            # The slots limit how many threads run at once.
            return await in_thread(partial(self.plain_results, items))
        args, kwargs = self.binding.columns(items)
        results = await self.function(*args, **kwargs)
        return [results] if self.is_of_one else results

    def plain_results(self, items: list[Any]) -> Any:
        """Runs a plain unary handler, in this thread and context."""
        args, kwargs = self.binding.columns(items)
        results = self.function(*args, **kwargs)
        if inspect.isawaitable(results):
            if inspect.iscoroutine(results):
                results.close()
            raise WrongResultType(
                f"the handler {self.name} is a plain function but returned an awaitable; "
                "make it an async function"
            )
        return [results] if self.is_of_one else results

    @property
    def is_of_one(self) -> bool:
        return self.binding.gives == "arguments"

    def steps(self, items: list[Any]) -> AsyncGenerator[Any, None]:
        """Runs a generator handler; cancellation reaches an async one, and waits for a step."""
        if self.threaded:
            return self._threaded_steps(PlainSteps(self, items))
        args, kwargs = self.binding.columns(items)
        steps = self.function(*args, **kwargs)
        return _of_one(steps) if self.is_of_one else steps

    async def _threaded_steps(self, steps: PlainSteps) -> AsyncGenerator[Any, None]:
        try:
            while (step := await in_thread(steps.next)) is not DONE:
                yield step
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(steps.close)


class PlainSteps:
    """The steps of a plain generator function. The first step starts it."""

    def __init__(self, handler: Handler, items: list[Any]) -> None:
        self.is_open = False
        self._handler = handler
        self._items = items
        self._generator: Any = None
        # One context for all steps. It is copied in the thread: the event loop's context would make
        # code believe that it runs in the loop.
        self._context: Context | None = None

    def next(self) -> Any:
        """Runs a step, in this thread; returns `DONE` if there is none."""
        if self._context is None:
            self._context = copy_context()
        step = self._context.run(self._step)
        return [step] if self._handler.is_of_one and step is not DONE else step

    def close(self) -> None:
        if self.is_open and self._context is not None:
            self.is_open = False
            self._context.run(self._generator.close)

    def _step(self) -> Any:
        if self._generator is None:
            args, kwargs = self._handler.binding.columns(self._items)
            self._generator = self._handler.function(*args, **kwargs)
        self.is_open = False  # unless it yields another step
        step = next(self._generator, DONE)
        self.is_open = step is not DONE
        return step


async def _of_one(steps: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async with aclosing(steps):
        async for step in steps:
            yield [step]


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function inside of partials, bound methods and callable objects."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isroutine(function):
            return function
        else:
            return type(function).__call__


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def model_handler(model: Any) -> Any:
    """Returns a model's ``run_batch``, with the parameters of ``run`` as keywords."""
    if inspect.isclass(model):
        raise TypeError(
            f"Batcher.over() takes a model object, not the class {model!r}; create an instance"
        )
    run, run_batch = _method(model, "run"), _method(model, "run_batch")
    names = _names(run)
    if inspect.isgeneratorfunction(run_batch) or inspect.isasyncgenfunction(run_batch):
        raise TypeError(
            f"{_name(run_batch)}() must give back a list, but is a generator function; "
            "for streams use shoal.Batcher(model.run_batch, signature=model.run)"
        )
    signature = _signature(run_batch)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(
            f"{_name(run_batch)}() must take each parameter of run() by its name, as a list, and "
            f"require no others, but run() has ({', '.join(names)}) and it has {signature}: {error}"
        ) from None
    handler: Any = partial(run_batch)
    handler.__signature__ = Signature([Parameter(n, Parameter.KEYWORD_ONLY) for n in names])
    return handler


def _method(model: object, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] | None = getattr(model, name, None)
    if not callable(method):
        raise TypeError(
            "Batcher.over() takes an object with run(), for one call, and run_batch(), which does "
            f"the same for lists, but {type(model).__qualname__} has no {name}()"
        )
    return method


def _names(run: Callable[..., Any]) -> list[str]:
    signature = _signature(run)
    refuse_unnamed(f"{_name(run)}()", signature)
    if not signature.parameters:
        raise TypeError(f"{_name(run)}() takes no argument, so there is nothing to batch")
    return list(signature.parameters)


def _signature(method: Callable[..., Any]) -> Signature:
    try:
        return read_signature(method)
    except ValueError:
        raise TypeError(f"{_name(method)}() has no readable signature") from None


logger: Final = logging.getLogger("shoal")

HELD_LONG_S: Final = 1.0
"""From how long a hold of the event loop on is logged, in seconds."""

LOGGED_EACH_S: Final = 60.0
"""The shortest time between two such log lines about the same code, in seconds."""


@dataclass(eq=False)
class HoldLog:
    """Logs that some code held up its event loop, at most once a minute."""

    # The time is measured when the code returns control, so nothing wakes up while no code runs.

    _code: str
    _advice: str = "declare it with def, or await the slow part"
    _logged_at: float = -math.inf

    def held(self, since: float, until: float) -> None:
        """The times are of `perf_counter`, in seconds."""
        if until - self._logged_at < LOGGED_EACH_S:
            return
        self._logged_at = until
        logger.warning(
            "%s held the event loop for %.1f s; %s: await anyio.to_thread.run_sync(function)",
            self._code,
            until - since,
            self._advice,
        )


@coroutine
def in_own_context(user_code: Coroutine[Any, Any, T], log: HoldLog) -> Generator[Any, Any, T]:
    """Awaits a coroutine in a copy of the current context, in the same task."""
    run, send = copy_context().run, user_code.send
    resume: Callable[[Any], Any] = send
    value: Any = None
    while True:
        since = perf_counter()
        try:
            awaited = run(resume, value)
        except BaseException as end:
            value = None  # the traceback of an error would hold this frame
            if (until := perf_counter()) - since > HELD_LONG_S:
                log.held(since, until)
            if isinstance(end, StopIteration):
                result: T = end.value
                return result
            raise
        value = None
        if (until := perf_counter()) - since > HELD_LONG_S:
            log.held(since, until)
        try:
            value = yield awaited
            resume = send
        except BaseException as error:
            value, resume = error, user_code.throw


_OWN_CONTEXT: Final[CodeType] = in_own_context.__code__


def stack_of(coroutine: object) -> str:
    """Formats the frames of a suspended coroutine like a traceback, outermost first."""
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = coroutine
    while awaited is not None:
        frame = _attribute(awaited, "frame")
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        if frame is not None and frame.f_code is _OWN_CONTEXT:
            awaited = frame.f_locals["user_code"]
        else:
            awaited = _attribute(awaited, "await") or _attribute(awaited, "yieldfrom")
    return "".join(traceback.StackSummary.extract(iter(frames)).format())


def _attribute(awaited: Any, name: str) -> Any:
    """Reads an attribute with a prefix that depends on the kind of coroutine or generator."""
    for prefix in ("cr_", "gi_", "ag_"):
        value = getattr(awaited, prefix + name, None)
        if value is not None:
            return value
    return None
