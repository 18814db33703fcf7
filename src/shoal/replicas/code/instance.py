"""One instance of a backend's code: the object, and its methods as handlers.

Each replica has one, wherever it runs. It leaves tasks, threads and processes to `Handler` and the
replica. The replica controls its life cycle.
"""

from __future__ import annotations

import inspect
import typing
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, partialmethod
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.batching.calls.call import StreamCall, refuse_batched
from shoal.batching.decorator.batched import Decorated
from shoal.batching.handlers.binding import Binding, annotations_of, takes_lists
from shoal.batching.handlers.handler import Fill, Handler, innermost
from shoal.batching.open_batch import OpenBatch
from shoal.errors import NoSuchName
from shoal.failures.held import held
from shoal.replicas.code.definition import Definition, with_handles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
    from inspect import Signature


_METHODS: Final[tuple[type[Any], ...]] = (FunctionType, staticmethod, partialmethod, Decorated)

# The names of the hooks.
HOOKS: Final = ("reconfigure", "health", "warm_up", "close")

# Ray Serve's names of hooks, where they differ; they work as well.
_RAYS: Final = {"health": "check_health"}

# The methods that callers can't call.
_NOT_FOR_CALLERS: Final = frozenset({*HOOKS, *_RAYS.values()})


@held
def is_async(function: Callable[..., Any]) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


@held
def is_async_class(code: Any) -> bool:
    """Returns whether a class has an async handler; its constructor runs in the event loop."""
    if not inspect.isclass(code):
        return False
    for name in ("__call__", *_method_names(code)):
        function: Any = inspect.getattr_static(code, name)
        if isinstance(function, partialmethod):
            function = function.func
        function = getattr(function, "__func__", function)
        if isinstance(function, Decorated):
            function = cast("Any", function).__wrapped__
        function = innermost(function)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return True
    return False


@dataclass(frozen=True)
class Method:
    """One method of a backend's code.

    Attributes:
        name: The method's name; ``"__call__"`` for the default method and for a function.
        signature: The signature of a call with one item, whether or not the code takes lists.
        streams: Whether it returns a stream.
        batched: Whether it takes lists; otherwise it gets one item at a time.
        gathers: Whether it is async code of one item that forms batches itself, with methods that
            `shoal.batch` decorates. Many calls of it must then run at once.
    """

    name: str
    signature: Signature
    streams: bool
    batched: bool
    gathers: bool = False
    open_signature: Signature | None = None


@dataclass(frozen=True)
class Description:
    """The methods and hooks of a replica's code.

    Attributes:
        methods: The public methods, by name.
        reconfigures: Whether it has ``reconfigure(user_config)``.
        checks_health: Whether it has ``health()``.
    """

    methods: Mapping[str, Method]
    reconfigures: bool
    checks_health: bool

    def method(self, name: str) -> Method:
        """Returns a method.

        Raises:
            NoSuchName: No method has that name.
        """
        method = self.methods.get(name)
        if method is None:
            raise self.has_no(name)
        return method

    def open_binding(self, name: str, tag: str) -> Binding:
        """Returns the binding of a method of the replica `tag` that takes an open batch.

        Raises:
            NoSuchName: No method has that name.
            TypeError: The method takes no open batch.
        """
        signature = self.method(name).open_signature
        if signature is None:
            raise takes_no_open_batch(name, tag)
        return Binding.of_items(signature, "items")

    def has_no(self, name: str) -> NoSuchName:
        """Returns the error for a method that does not exist."""
        return NoSuchName(
            f"the backend has no method {name!r}; it has {', '.join(sorted(self.methods))}"
        )


class Instance:
    """A function, or an instance of a class; the constructor runs the user's, so it may block."""

    def __init__(self, definition: Definition) -> None:
        loaded = definition.load()
        definition.check_loaded(loaded)
        if inspect.isclass(loaded):
            self.target: Any = copy_context().run(definition.instantiated, loaded)
        else:
            self.target = loaded
        self.handlers: dict[str, Handler] = {}
        methods: dict[str, Method] = {}
        is_batching = forms_batches(self.target)
        for name, function in _methods(self.target):
            handler, batched = _adapted(name, function, definition)
            if handler is not None:
                self.handlers[name] = handler
                signature = handler.binding.signature
                gathers = is_batching and not batched and not handler.threaded
                opened = _open_signature(handler, definition.signature)
                methods[name] = Method(name, signature, handler.streams, batched, gathers, opened)
        if any(method.gathers for method in methods.values()):
            for face in _own_batchers(self.target):
                face.warn_if_unreachable()
        self.description = Description(
            methods,
            reconfigures=self.hook("reconfigure") is not None,
            checks_health=self.hook("health") is not None,
        )

    @held
    def hook(self, name: str) -> Callable[..., Any] | None:
        if inspect.isroutine(self.target):
            return None
        hook = getattr(self.target, name, None)
        if not callable(hook) and name in _RAYS:
            hook = getattr(self.target, _RAYS[name], None)
        return hook if callable(hook) else None

    @held
    def reconfigure_hook(self, user_config: Any, tag: str) -> Callable[..., Any]:
        hook = self.hook("reconfigure")
        if hook is None:
            raise TypeError(
                f"{tag} was given user_config={user_config!r:.80}, but its code has no "
                "method reconfigure(user_config)"
            )
        return hook


def _methods(target: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "__call__", target
    if inspect.isroutine(target):
        return
    for name in _method_names(cast("Any", type(target))):
        yield name, getattr(target, name)


def _method_names(cls: Any) -> Iterator[str]:
    """Yields the names of the methods that callers may call, other than ``__call__``."""
    for name in dir(cls):
        if name.startswith("_") or name in _NOT_FOR_CALLERS:
            continue
        static: Any = inspect.getattr_static(cls, name)
        if any(isinstance(static, kind) for kind in _METHODS) and _is_its_own(cls, name):
            yield name


def _is_its_own(cls: Any, name: str) -> bool:
    """Returns whether a method is defined in the same package as the class."""
    # A method that is inherited from a library may do anything, such as read a file or a pickle
    # that an argument names. Its author did not mean it for remote callers.
    owner = next(base for base in cls.__mro__ if name in vars(base))
    return bool(owner.__module__.partition(".")[0] == cls.__module__.partition(".")[0])


def forms_batches(code: Any) -> bool:
    """Returns whether a function, a class or its instance has code decorated with `shoal.batch`."""
    cls = cast("Any", code if inspect.isclass(code) else type(code))
    return isinstance(code, Decorated) or any(_decorated_names(cls))


def _own_batchers(target: Any) -> list[Decorated]:
    if isinstance(target, Decorated):
        return [target]
    return [getattr(target, name) for name in _decorated_names(cast("Any", type(target)))]


def _decorated_names(cls: Any) -> Iterator[str]:
    for name in dir(cls):
        static: Any = inspect.getattr_static(cls, name, None)
        if isinstance(getattr(static, "__func__", static), Decorated):
            yield name


def _awaited(face: Decorated) -> Callable[..., Any]:
    """Returns an async function of one item that calls a batched function."""
    made: Any = face
    if isinstance(face, StreamCall):

        async def steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            async with made(*args, **kwargs) as stream:
                async for item in stream:
                    yield item

        call: Any = steps
    else:

        async def result(*args: Any, **kwargs: Any) -> Any:
            return await made(*args, **kwargs)

        call = result
    call.__annotations__ = {}
    call.__signature__ = face.__signature__
    call.__qualname__ = made.__qualname__
    return cast("Callable[..., Any]", call)


def _adapted(
    name: str, function: Callable[..., Any], definition: Definition
) -> tuple[Handler | None, bool]:
    """Returns the handler of a method, and whether it takes lists; None for a helper method."""
    if name == "__call__":
        return adapted(function, definition)
    batched_already: Any = function
    if isinstance(batched_already, Decorated):
        return Handler.of_one(_awaited(batched_already)), False
    try:
        function = with_handles(function)
        batched = takes_lists(function)
    except TypeError:  # helpers may have any parameters
        batched = False
    try:
        return Handler(function) if batched else Handler.of_one(function), batched
    except (TypeError, ValueError):
        return None, batched


def _fill(function: Callable[..., Any]) -> Fill:
    annotations = [typing.get_origin(each) or each for each in annotations_of(function)]
    return "open" if annotations == [OpenBatch] else "closed"


def _open_signature(handler: Handler, prototype: Callable[..., Any] | None) -> Signature | None:
    if handler.threaded or handler.streams:
        return None
    try:
        return Handler(handler.function, prototype, fill="open").binding.signature
    except (TypeError, ValueError):  # it takes lists, for example
        return None


def takes_no_open_batch(method: str, tag: str) -> TypeError:
    return TypeError(
        f"{method} of {tag} takes no open batch: with fill='open' or fill='continuous' it must be "
        "an async function of the batch; write\n"
        "    async def handler(batch: shoal.OpenBatch[T, R]) -> None: ..."
    )


def adapted(
    function: Any, definition: Definition, *, fill: Fill = "closed", streams: bool = False
) -> tuple[Handler, bool]:
    """Returns the handler of a backend's callable, and whether it takes lists."""
    cls: Any = type(function)  # pyright: ignore[reportUnknownVariableType]
    code: Any = inspect.getattr_static(cls, "__call__", None)
    face = function.__call__ if isinstance(code, Decorated) else function
    if isinstance(face, Decorated):
        return Handler.of_one(_awaited(face)), False
    refuse_batched(function)
    function = with_handles(function)
    if fill != "closed":
        return Handler(function, definition.signature, fill=fill, streams=streams), True
    batched = definition.accept_batch
    if batched is None:
        batched = takes_lists(function)
    if not batched:
        return Handler.of_one(function), False
    return Handler(function, definition.signature, fill=_fill(function)), True


def call_of(cls: Any) -> Any:
    """Returns a stand-in for the ``__call__`` of instances of a class, only for inspection."""
    call: Any = inspect.getattr_static(cls, "__call__", None)
    return call.bound_to(cls) if isinstance(call, Decorated) else partial(cls.__call__, None)
