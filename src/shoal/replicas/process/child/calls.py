"""In the worker: decodes frames to calls of the user's code, and encodes its results as frames.

A batch of arrays arrives in a worker as one block. ``numpy.asarray(items)`` would copy the arrays
once more, although they already are one array. The list of items therefore implements NumPy's array
interface, which does not require NumPy here.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.batching.current import continued, running_batch, running_replica, setting
from shoal.batching.handlers.batch_results import check_results
from shoal.replicas.code.instance import Instance, takes_no_open_batch
from shoal.replicas.process.wire.batch import BatchAsData
from shoal.replicas.process.wire.errors import check_may_leave, slots_as_data
from shoal.replicas.process.wire.messages import Message, MessageCodec, packed_parts, places_of
from shoal.replicas.process.wire.start import Defaults
from shoal.replicas.threads import InnerCalls, inner_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from shoal.batching.handlers.handler import Handler, PlainSteps
    from shoal.core.request import Batch, Draining
    from shoal.replicas.process.child.open_batch import OpenWork
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.messages import Dumps


class Stacked(list[Any]):
    """A list of arrays that lie in one block."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The array of all items; AttributeError once they do not form one array."""
        interfaces = [getattr(item, "__array_interface__", None) for item in self]
        first = interfaces[0] if interfaces else None
        if first is None or first.get("strides") is not None or 0 in first["shape"]:
            raise AttributeError
        start, is_read_only = first["data"]
        size = memoryview(self[0]).nbytes
        wanted = dict(first)
        for nth, interface in enumerate(interfaces):
            wanted["data"] = start + nth * size, is_read_only
            if interface != wanted:
                raise AttributeError
        return {**first, "shape": (len(self), *first["shape"])}


def stacked(items: list[Any], places: Sequence[tuple[int, int]]) -> list[Any]:
    """Returns the items, as `Stacked` if their buffers lie side by side."""
    if not items or len(places) != len(items):
        return items
    start, size = places[0]
    for nth, place in enumerate(places):
        if place != (start + nth * size, size):
            return items
    return Stacked(items)


@dataclass(eq=False)
class Work:
    method: str
    handler: Handler
    items: list[Any]
    batch: Batch | None
    inner: InnerCalls

    def plain_results(self) -> Any:
        with self.is_running():
            # In a context of its own: the thread may run the next call in the same one.
            return copy_context().run(self.handler.plain_results, self.items)

    def next_of(self, steps: PlainSteps) -> Any:
        """Runs and returns the next step, in this thread; `DONE` if there is none."""
        with self.is_running():
            return steps.next()

    @contextmanager
    def is_running(self) -> Generator[None]:
        """Sets the code's batch (`shoal.current_batch`), its trace, and its own calls."""
        batch = self.batch
        with setting(inner_calls, self.inner):
            if batch is None:
                yield
                return
            with setting(running_batch, batch), continued(batch.trace):
                yield


class CallAnswers:
    def __init__(
        self,
        codec: MessageCodec,
        instance: Instance,
        draining: Draining,
        dumps: Dumps = pickle.dumps,
    ) -> None:
        self._draining = draining
        self.codec = codec
        self.instance = instance
        self.dumps = dumps  # pickles what the code returns and raises
        # Returns how the replica ends by an error of its code, if it does; it may block.
        self.explain: Callable[[Exception], str | None] | None = None
        methods = instance.description.methods
        self._defaults = {name: Defaults(method.signature) for name, method in methods.items()}
        self._defaults_of_open = {
            name: Defaults(method.open_signature)
            for name, method in methods.items()
            if method.open_signature is not None
        }

    def opened(self, frame: Frame, now: float, inner: InnerCalls) -> Work:
        """Decodes a call; `now` is the time on the clock that its code uses."""
        try:
            name, items, batch = self.codec.opened_here(frame)
        except Exception as error:
            raise TypeError(f"the batch can't be unpickled in the process: {error}") from error
        self.instance.description.method(name)  # raises NoSuchName
        items = self._defaults[name].put_into(items)
        return Work(
            name,
            self.instance.handlers[name],
            stacked(items, places_of(frame)[: len(frame.buffers)]),
            None if batch is None else BatchAsData(*batch).as_batch(now, self._draining),
            inner,
        )

    def opened_batch(self, opened: OpenWork, inner: InnerCalls) -> Work:
        """Prepares an open batch for its handler."""
        method = self.instance.description.method(opened.method)  # raises NoSuchName
        if method.open_signature is None:
            raise takes_no_open_batch(method.name, running_replica.get().replica)
        handler = self.instance.handlers[method.name]
        opened.name = handler.name
        opened.prepare = self._defaults_of_open[method.name].put_into
        return Work(opened.method, handler, [], opened.batch, inner)

    def packed(self, work: Work, results: Any) -> Message:
        """Checks the results and packs them; uses shared memory if there is room."""
        handler = work.handler
        check_results(handler.name, len(work.items), results, is_step=handler.streams)
        check_may_leave(results)
        slots = slots_as_data(results, self.dumps)
        message = packed_parts(slots, work.method, "result {} of {}()", results, self.dumps)
        if self.codec.reserve(message):
            self.codec.write(message)
        return message

    def reconfigure_hook(self, user_config: Any) -> Callable[..., Any]:
        return self.instance.reconfigure_hook(user_config, running_replica.get().replica)
