"""What `shoal.batch` returns: a function of one item, which finds the batcher open for it."""

from __future__ import annotations

import logging
import math
from functools import update_wrapper
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, cast

from shoal.batching.calls.call import StreamCall, UnaryCall
from shoal.batching.current import running_replica

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Unpack

    from shoal.batching.batcher import Batcher
    from shoal.batching.calls.entry import Entry
    from shoal.batching.decorator.registry import Opening
    from shoal.core.events import Observers
    from shoal.core.forming.call_options import CallOptions
    from shoal.core.options.options import OptionKeywords
    from shoal.loops.event_loop import EventLoop

logger: Final = logging.getLogger("shoal")

P = ParamSpec("P")
R = TypeVar("R")


class Decorated:
    __name__: str
    __qualname__: str

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._call_options: CallOptions | None = None
        update_wrapper(cast("Callable[..., Any]", self), opening.handler.function)
        self._bind(None, opening.entries)
        opening.face = self

    def _bind(self, receiver: object, here: dict[int, Entry]) -> None:
        self._receiver = receiver
        self._here = here
        opening = self._opening
        self.__signature__ = opening.call_signature if receiver is None else opening.bound_signature

    def bound_to(self, receiver: object) -> Self:
        cls = type(self)
        face = cls.__new__(cls)
        face.__dict__ = self.__dict__.copy()
        # It gets no entries if a block opens the batcher for the instance: the object keeps the
        # instance, but the batcher must not.
        face._bind(receiver, {})
        return face

    def __set_name__(self, owner: type, name: str) -> None:
        opening = self._opening
        opening.is_method = not (opening.is_static or opening.is_class_method)

    @property
    def batcher(self) -> Batcher[Any]:
        """The batcher that is open for this function in this event loop.

        Raises:
            NotOpen: No batcher is open.
        """
        return self._opening.found(self._receiver).batcher

    def configure(self, **changes: Unpack[OptionKeywords]) -> None:
        """Changes several options together, for all batchers opened for this function later.

        If a batcher is open in this event loop, the options apply to it too, from its next batch
        on. From a thread without an event loop, such as that of a plain ``reconfigure()``, they
        apply to all open batchers soon after.

        It may be called before a batcher is open, such as for a method of ``self`` in a
        constructor, and the options outlive the batcher. For a method it sets the options of this
        instance only. See `Batcher.configure` for which batch is the next.

        Args:
            **changes: As in `BatchOptions`; options that you omit keep their values.

        Raises:
            TypeError: A name is no option, or a value has the wrong type; nothing is changed.
            ValueError: A value is out of its range; nothing is changed.
        """
        self._opening.configure(self._receiver, changes)
        if "max_batch_size" in changes:
            self.warn_if_unreachable(changes["max_batch_size"])

    def warn_if_unreachable(self, max_batch_size: int | None = None) -> None:
        """Logs a warning if the replica that runs here never has a full batch of requests."""
        most = getattr(running_replica.get(None), "most_requests", math.inf)
        if most == math.inf:
            return
        options = self._opening.options(self._receiver)
        size = options.max_batch_size if max_batch_size is None else max_batch_size
        if size > most and options.batch_size_fn is None:
            logger.warning(
                "%s: max_batch_size=%d can't be reached by calls of one item: its replica has at "
                "most max_ongoing_requests=%d requests at once; raise max_ongoing_requests, or "
                "lower max_batch_size",
                self._opening.handler.name,
                size,
                most,
            )

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
    def observers(self) -> Observers | None:
        """The observers of this function's batchers; None for a method of one instance."""
        is_bound = self._opening.is_method and self._receiver is not None
        return None if is_bound else self._opening.observers

    def opened(self) -> AbstractAsyncContextManager[Batcher[Any]]:
        return self._opening.opened(self._receiver, self)

    def lent(self, batcher: Batcher[Any]) -> AbstractContextManager[None]:
        """Returns the context manager that routes calls of this function to another batcher."""
        # That batcher has the same handler, and its owner keeps it open.
        return self._opening.lent(self._receiver, self, batcher)

    def note_entry(self, entry: Entry, *, finds: bool) -> None:
        """Records whether the thread of an entry alone determines the batcher of a call there."""
        thread = entry.intake.home.thread
        if finds:
            self._here[thread] = entry
        elif self._here.get(thread) is entry:
            self._here.pop(thread, None)

    def parts(self) -> tuple[Callable[..., Any], Callable[..., Any] | None, dict[str, Any]]:
        return self._opening.parts(self._receiver)

    def bound(self, receiver: object) -> Any:
        opening = self._opening
        if receiver is None or opening.is_static:
            return self
        found = opening.in_thread(receiver)
        if found is None or found.face is None:
            return self.bound_to(receiver)
        # While it is open there is one object for it, so that method calls need not create any.
        return found.face

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        bound: Self = self.bound(owner if self._opening.is_class_method else instance)
        return bound

    def _find(self) -> Entry:
        return self._opening.found(self._receiver).entry

    def _loops(self) -> list[EventLoop]:
        return self._opening.loops(self._receiver)

    def _found_for(self, args: tuple[Any, ...]) -> tuple[Entry, tuple[Any, ...]]:
        # For `Class.method(instance, item)` the receiver is the first argument.
        if self._receiver is None and self._has_receiver(args):
            return self._opening.found(args[0]).entry, args[1:]
        return self._find(), args

    def _has_receiver(self, args: tuple[Any, ...]) -> bool:
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

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Makes copies and pickles refer to this object, as for a plain function or a method."""
        if self._receiver is None:
            return self.__qualname__
        return getattr, (self._receiver, self.__name__)

    def __repr__(self) -> str:
        return f"<batched {self._opening.handler.name}>"


class BatchedFunction(Decorated, UnaryCall[P, R]):
    """A function of one item, made by `shoal.batch` from a handler of a list.

    Raises: as `UnaryCall`.
    """

    # `Decorated` replaces the constructor of `UnaryCall`, and how it finds an open batcher.


class BatchedGenerator(Decorated, StreamCall[P, R]):
    """A function of one item with a stream of results; `shoal.batch` of a generator handler.

    Raises: as `StreamCall`.
    """
