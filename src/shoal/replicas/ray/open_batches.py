"""In the actor: its open batches, each in a task of the actor's event loop.

This is no part of the actor's class, since Ray would run all calls of a class with async methods in
an event loop of its own.
"""

from __future__ import annotations

from collections import deque
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from shoal.batching.open_batch import OpenBatch
from shoal.replicas.process.child.open_batch import OpenWork
from shoal.replicas.process.wire.frames import FrameKind
from shoal.replicas.process.wire.messages import EMPTY, packed, unpickled
from shoal.replicas.process.wire.open_batch import OpenStart
from shoal.replicas.ray.async_code import AsyncActorWork, as_exceptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from contextvars import Context

    from anyio.abc import TaskGroup

    from shoal.core.request import Batch, Draining
    from shoal.replicas.process.wire.errors import ErrorAsData
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.messages import Dumps, Message

# The kinds of the frames about open batches that a replica sends.
ABOUT_OPEN: Final = frozenset({FrameKind.OPEN, FrameKind.NEWS, FrameKind.CANCEL})


@dataclass
class OpenBatches:
    # Of the actor's event loop.
    tasks: TaskGroup
    # Finds the code for a batch, and what it runs in.
    code: Callable[[OpenWork], Callable[..., Any]]
    context: Callable[[Batch, AsyncActorWork], AbstractContextManager[None]]
    # Converts an error of the code, and may block; None if the error ends the replica.
    convert_error: Callable[[BaseException], ErrorAsData | None]
    # Sends a frame to the replica.
    send: Callable[[FrameKind, int, Message], object]
    draining: Draining
    # Pickles results.
    dumps: Dumps
    _frames: deque[Frame] = field(default_factory=deque["Frame"])
    # That of a task of the event loop, without which anyio knows no loop.
    _context: Context = field(default_factory=copy_context)
    _calls: dict[int, tuple[OpenWork, AsyncActorWork]] = field(
        default_factory=dict[int, "tuple[OpenWork, AsyncActorWork]"]
    )

    def put(self, frame: Frame) -> None:
        """Adds a frame about an open batch, which `take` takes; from any thread."""
        self._frames.append(frame)

    def take(self) -> None:
        """Takes the frames that were added; the event loop also calls this outside of tasks."""
        while self._frames:
            self._context.run(self._handle, self._frames.popleft())

    def _handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.OPEN:
            start = OpenStart(*unpickled(frame.body))
            send = partial(self.send, FrameKind.ANSWERS, frame.id)
            opened = OpenWork(start, self.draining, send, self.dumps, read=self.take)
            work = AsyncActorWork()
            self._calls[frame.id] = opened, work
            self.tasks.start_soon(opened.send_gathered)
            self.tasks.start_soon(self._run, frame.id, opened, work)
        elif frame.id in self._calls:
            opened, work = self._calls[frame.id]
            if frame.kind is FrameKind.NEWS:
                opened.take(frame.body, frame.buffers)
            else:
                work.cancel()

    async def _run(self, id_: int, opened: OpenWork, work: AsyncActorWork) -> None:
        raised: Exception | None = None
        try:
            with self.context(opened.batch, work):
                code = self.code(opened)
                with work.new_scope(), as_exceptions():
                    await code(OpenBatch[Any, Any](opened, opened))
        except Exception as error:
            raised = error
        del self._calls[id_]
        opened.end()
        if raised is None:
            self.send(FrameKind.END, id_, EMPTY)
            return
        data = await anyio.to_thread.run_sync(self.convert_error, raised)
        raised = None  # its traceback holds this frame
        if data is not None:  # otherwise the end of the replica ends the call
            self.send(FrameKind.ERROR, id_, packed(data))
