"""Makes the calls of a worker's code to endpoints, in the parent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.current import continued
from shoal.failures.held import holding
from shoal.loops.event_loop import holds_ctrl_c
from shoal.replicas.process.wire.errors import as_data
from shoal.replicas.process.wire.frames import STEPS_AHEAD, FrameKind
from shoal.replicas.process.wire.messages import EMPTY, Message, packed, unpickled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.process.wire.frames import Frame

# The kinds of frames on the control channel that belong to such calls.
FROM_CODE: Final = frozenset({FrameKind.CALL_OUT, FrameKind.CREDIT, FrameKind.CANCEL})


class _Job:
    """One call under way; `credit` is the number of steps that its reader has room for."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.credit = STEPS_AHEAD
        self.has_credit = anyio.Event()


class CallOutRunner:
    """Makes the calls of a worker's code to endpoints, each in a task of its own."""

    def __init__(self, send: Callable[[FrameKind, int, Message], object]) -> None:
        self._send = send
        self._jobs: dict[int, _Job] = {}
        self._asked: deque[Frame] = deque()
        self._has_some = anyio.Event()

    def handle(self, frame: Frame) -> None:
        if frame.kind is FrameKind.CALL_OUT:
            self._jobs[frame.id] = _Job()
            self._asked.append(frame)
            self._has_some.set()
        elif (job := self._jobs.get(frame.id)) is not None:
            if frame.kind is FrameKind.CREDIT:
                job.credit += unpickled(frame.body)
                job.has_credit.set()
            else:
                job.scope.cancel()

    async def run(self, make: Callable[[CallOut], Awaitable[Any]] | None) -> None:
        """Makes and answers calls until it is cancelled; `make` is None to refuse them."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._has_some.wait()
                self._has_some = anyio.Event()
                while self._asked:
                    tasks.start_soon(self._answer, self._asked.popleft(), make)

    @holds_ctrl_c
    async def _answer(self, frame: Frame, make: Callable[[CallOut], Awaitable[Any]] | None) -> None:
        job = self._jobs[frame.id]
        try:
            with job.scope, holding():
                if make is None:
                    raise RuntimeError("code in this process can't call endpoints")
                call: CallOut = unpickled(frame.body, frame.buffers)
                with continued(call.trace):
                    if call.stream:
                        await self._stream(frame.id, job, await make(call))
                        self._send(FrameKind.END, frame.id, EMPTY)
                    else:
                        self._send(FrameKind.RESULT, frame.id, _packed(call, await make(call)))
        except Exception as error:
            self._send(FrameKind.ERROR, frame.id, packed(as_data(error)))
        finally:
            del self._jobs[frame.id]

    async def _stream(self, id_: int, job: _Job, opened: Any) -> None:
        async with opened as steps:
            async for step in steps:
                self._send(FrameKind.PART, id_, _packed(None, step))
                job.credit -= 1
                while job.credit == 0:
                    job.has_credit = anyio.Event()
                    await job.has_credit.wait()


def _packed(call: CallOut | None, result: Any) -> Message:
    try:
        return packed(result)
    except Exception as error:
        name = "a step" if call is None else f"the result of {call.endpoint!r}"
        raise TypeError(f"{name} can't be sent between processes: {error}") from error
