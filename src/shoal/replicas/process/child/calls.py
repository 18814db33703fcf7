"""In the worker: from the frame of a call to the user's code, and from its results to a frame.

A batch of arrays comes into a worker in one block. Code that asks ``numpy.asarray(items)`` for one
array of them all would have them copied once more, although they are that array already. So the
list of the items tells of it, by NumPy's array interface, which asks for no NumPy here.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from shoal.batching.current import running_batch
from shoal.replicas.code.jobs import PlainMethod
from shoal.replicas.process.child.endpoints import CancelToken, current_cancel_token
from shoal.replicas.process.wire.errors import as_data, slots_as_data
from shoal.replicas.process.wire.messages import packed, places_of, unpickled
from shoal.replicas.process.wire.signatures import Defaults
from shoal.replicas.process.wire.start import why_unsendable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from shoal.batching.handlers.handler import Handler
    from shoal.core.batch import Batch, Draining
    from shoal.replicas.code.instance import Instance
    from shoal.replicas.code.jobs import PlainSteps
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.messages import Message, MessageCodec


class Stacked(list[Any]):
    """A list of arrays that came in one block."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The array that all of them are, while they are unchanged in their places.

        Raises:
            AttributeError: They are not one array any more; it is a list like any other.
        """
        interfaces = [getattr(item, "__array_interface__", None) for item in self]
        first = interfaces[0] if interfaces else None
        if first is None or first.get("strides") is not None or 0 in first["shape"]:
            raise AttributeError
        start, is_read_only = first["data"]
        size = memoryview(self[0]).nbytes
        for nth, interface in enumerate(interfaces):
            if interface != {**first, "data": (start + nth * size, is_read_only)}:
                raise AttributeError
        return {**first, "shape": (len(self), *first["shape"])}


def stacked(items: list[Any], places: Sequence[tuple[int, int]]) -> list[Any]:
    """Returns the items; as `Stacked` where they may be one array.

    Args:
        items: The items of a batch.
        places: Where the buffers of the batch lie: offsets and sizes.
    """
    if not items or len(places) != len(items):
        return items
    start, size = places[0]
    for nth, place in enumerate(places):
        if place != (start + nth * size, size):
            return items
    return Stacked(items)


class Work:
    """One call of the code.

    Attributes:
        method: The name of the method.
        handler: The method.
        items: What it is called with.
    """

    def __init__(
        self,
        method: str,
        handler: Handler,
        items: list[Any],
        batch: Batch | None,
        cancel_token: CancelToken,
        *,
        batched: bool,
    ) -> None:
        self.method = method
        self.handler = handler
        self.items = items
        self._batch = batch
        self._cancel_token = cancel_token
        self._batched = batched

    def plain_results(self) -> Any:
        """Calls a plain method, in this thread.

        Raises:
            Exception: What the code raises.
        """
        with self.is_running():
            return PlainMethod(self.handler, batched=self._batched).results(self.items)

    def plain_steps(self) -> PlainSteps:
        """Returns the steps of a plain generator method; nothing of it has run yet."""
        return PlainMethod(self.handler, batched=self._batched).steps(self.items)

    def next_of(self, steps: PlainSteps) -> Any:
        """Makes the next of its steps, in this thread; `jobs.DONE` if there is none."""
        with self.is_running():
            return steps.next()

    @contextmanager
    def is_running(self) -> Generator[None]:
        """Lets the code know its batch, as `shoal.current_batch`, and its calls this work."""
        cancel_token = current_cancel_token.set(self._cancel_token)
        batch = None if self._batch is None else running_batch.set(self._batch)
        try:
            yield
        finally:
            current_cancel_token.reset(cancel_token)
            if batch is not None:
                running_batch.reset(batch)


class CallAnswers:
    """What calls ask for, and what is answered.

    Attributes:
        codec: The use of the shared memory.
        instance: The user's code.
    """

    def __init__(self, codec: MessageCodec, instance: Instance, draining: Draining) -> None:
        self._draining = draining
        self.codec = codec
        self.instance = instance
        methods = instance.description.methods
        self._defaults = {name: Defaults(method.signature) for name, method in methods.items()}

    def opened(self, frame: Frame, now: float, cancel_token: CancelToken) -> Work:
        """Reads what a call asks for.

        Args:
            frame: The call.
            now: The time on the clock that the code of its method reads.
            cancel_token: What has the calls that it makes cancelled.

        Raises:
            TypeError: The items can't be read here.
            AttributeError: There is no such method.
        """
        try:
            name, items, batch = self.codec.opened_here(frame)
        except Exception as error:
            raise TypeError(f"the batch can't be read in the process: {error}") from error
        method = self.instance.description.method(name)
        return Work(
            name,
            self.instance.handlers[name],
            stacked(self._defaults[name].put_into(items), places_of(frame)),
            None if batch is None else batch.as_batch(now, self._draining),
            cancel_token,
            batched=method.batched,
        )

    def packed(self, method: str, results: Any) -> Message:
        """Makes the content of an answer, in shared memory as far as there is room.

        Raises:
            TypeError: The results can't be sent.
        """
        try:
            message = packed(slots_as_data(results))
        except Exception as error:
            listed: list[Any] = [results]
            if isinstance(results, (list, tuple)):
                listed = list(cast("list[Any]", results))
            raise why_unsendable(f"result {{nth}} of {method}()", listed, error) from error
        if self.codec.reserve(message):
            self.codec.write(message)
        return message

    def failure(self, error: BaseException) -> Message:
        """Makes the content of an answer that is an error."""
        return packed(as_data(error))

    def credit(self, frame: Frame) -> int:
        """Reads how many steps of a stream its reader has taken."""
        count: int = unpickled(frame.body)
        return count

    def takes_user_config(self) -> Callable[..., Any]:
        """Returns the code's ``reconfigure``.

        Raises:
            TypeError: It has none.
        """
        hook = self.instance.hook("reconfigure")
        if hook is None:
            raise TypeError(
                "it was given a user_config, but its code has no reconfigure(user_config) that "
                "would take it"
            )
        return hook
