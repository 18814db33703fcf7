"""One instance of a backend's code: the object, and its methods as handlers.

It is what a replica has inside, wherever it runs. It knows nothing of tasks, threads or processes
beyond what `Handler` does, and its life is told from outside.
"""

from __future__ import annotations

import inspect
from functools import partialmethod
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.batching.decorated import Decorated
from shoal.batching.handlers import Handler, OneAtATime
from shoal.replicas.accepting import takes_lists
from shoal.replicas.description import Description, Method
from shoal.replicas.hooks import HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.replicas.definition import Definition

_METHODS: Final[tuple[type[Any], ...]] = (
    FunctionType,
    staticmethod,
    partialmethod,
)


class Instance:
    """A function, or an instance of a class, and what can be asked of it.

    The constructor runs the user's: it may block.

    Args:
        definition: The user's code.

    Attributes:
        description: What it can do.

    Raises:
        TypeError: It is no code for a backend.
        ValueError: The import path names nothing.
        Exception: What the user's code raised.
    """

    def __init__(self, definition: Definition) -> None:
        loaded = definition.load()
        definition.check_loaded(loaded)
        if inspect.isclass(loaded):
            self._target: Any = loaded(*definition.init_args, **dict(definition.init_kwargs))
        else:
            self._target = loaded
        self.handlers: dict[str, Handler] = {}
        methods: dict[str, Method] = {}
        for name, function in _methods(self._target):
            handler, batched = _adapted(name, function, definition)
            if handler is not None:
                self.handlers[name] = handler
                signature = handler.binding.signature
                methods[name] = Method(name, signature, handler.streams, batched)
        self.description = Description(
            methods,
            reconfigures=self.hook("reconfigure") is not None,
            checks_health=self.hook("health") is not None,
        )

    def hook(self, name: str) -> Callable[..., Any] | None:
        """Returns one of `HOOKS`; None if the code has none of that name."""
        if inspect.isroutine(self._target):
            return None
        found = getattr(self._target, name, None)
        return found if callable(found) else None


def _methods(target: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "__call__", target
    if inspect.isroutine(target):
        return
    cls = cast("Any", type(target))
    for name in dir(cls):
        if name.startswith("_") or name in HOOKS:
            continue
        static: Any = inspect.getattr_static(cls, name)
        if any(isinstance(static, kind) for kind in _METHODS) and _is_its_own(cls, name):
            yield name, getattr(target, name)


def _is_its_own(cls: Any, name: str) -> bool:
    """Says whether a method is of the same package as the class.

    What it inherits from a library may do anything, such as read a file or a pickle that it is told
    to, and its author did not mean it for whoever can make calls.
    """
    owner = next(base for base in cls.__mro__ if name in vars(base))
    return bool(owner.__module__.partition(".")[0] == cls.__module__.partition(".")[0])


def _adapted(
    name: str, function: Callable[..., Any], definition: Definition
) -> tuple[Handler | None, bool]:
    """Returns a method as a handler, and whether it takes lists.

    None for a method other than ``__call__`` whose calls would have no form: it is a helper.
    """
    code: Any = inspect.getattr_static(type(function), "__call__", None)
    if any(isinstance(one, Decorated) for one in (function, code)):
        if name != "__call__":
            return None, False
        raise TypeError(
            f"{function!r} is decorated with @shoal.batch, and a backend would batch it again; "
            "take the decorator off, and give its options as the backend's config"
        )
    batched, prototype = takes_lists(function), None
    if name == "__call__":
        prototype = definition.signature
        batched = batched if definition.accept_batch is None else definition.accept_batch
    try:
        return Handler(function, prototype) if batched else OneAtATime(function), batched
    except (TypeError, ValueError):
        if name == "__call__":
            raise
        return None, batched
