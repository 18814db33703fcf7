"""One connection of a server that forwards batches (an ingress) to this one.

Its items become single requests in the queue of the backend, beside those of other ingresses and of
this server's own endpoints. So the backend's batches do not depend on who sent which item. Requests
end when the connection does, and never the other way round: models stay loaded.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from shoal.batching.calls.stream import END, SKIP
from shoal.batching.current import continued
from shoal.errors import (
    BackendUnavailable,
    BatcherClosed,
    HandlerFailed,
    NoSuchName,
    ReplicaDied,
)
from shoal.failures.held import holding
from shoal.loops.event_loop import holds_ctrl_c
from shoal.replicas.process.wire.batch import BatchAsData
from shoal.replicas.process.wire.connection import AnsweredCall, FrameConnection
from shoal.replicas.process.wire.errors import as_data, check_may_leave, slots_as_data
from shoal.replicas.process.wire.frames import STEPS_AHEAD, FrameKind, FrameReader
from shoal.replicas.process.wire.messages import EMPTY, packed, packed_parts, unpickled, unshared
from shoal.replicas.process.wire.start import Defaults, sendable
from shoal.replicas.remote.keep_alive import MOST_BYTES, check_size, keep_alive
from shoal.serving.backend_options import MOST_REMOTE

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from shoal.core.forming.call_options import CallOptions
    from shoal.replicas.code.instance import Description
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.messages import Message
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.backends.backend import Backend
    from shoal.serving.backends.managed import ManagedReplica
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.controller.controller import Controller

logger: Final = logging.getLogger("shoal.serving")

_MOST_CALLS: Final = 4096
"""The most calls of one connection that may be under way."""

_WORK: Final = frozenset(
    {
        FrameKind.START,
        FrameKind.RUN,
        FrameKind.STREAM,
        FrameKind.RECONFIGURE,
        FrameKind.HEALTH,
    }
)


class _Call(AnsweredCall):
    def __init__(self) -> None:
        super().__init__()
        # Ends the request at a place in the message; until it has begun, keeps the place.
        self._left: list[int] = []
        self.leave: Callable[[int], object] = self._left.append

    def begun(self, leave: Callable[[int], object]) -> None:
        self.leave = leave
        for place in self._left:
            leave(place)


class _Calls(NamedTuple):
    """The calls of a message."""

    method: str
    items: list[Any]
    options: Sequence[CallOptions | None]
    trace: Mapping[str, str] | None = None


class Ingress:
    """Serves an authenticated connection; `name` is for messages.

    `counts` has the numbers of ``"messages"`` and ``"requests"`` of all ingresses.
    """

    def __init__(self, sock: Any, name: str, controller: Controller, counts: Counter[str]) -> None:
        self.name = name
        reader = FrameReader(most_bytes=MOST_BYTES)
        self._connection = FrameConnection(sock, reader, self._on_invalid_frame)
        self._controller = controller
        self._counts = counts
        self._calls: dict[int, _Call] = {}
        # The backend that its calls are for, and the ingress's name for this replica of it.
        self._backend: Backend | None = None
        self._tag = ""
        self._defaults: dict[str, Defaults] = {}
        self._is_started = self._is_draining = False
        self._ended = anyio.Event()
        self._tasks: TaskGroup

    async def run(self) -> None:
        """Serves until the other end is gone; then cancels its requests."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._connection.write)
                tasks.start_soon(keep_alive, self._connection, self._end)
                tasks.start_soon(self._read)
                await self._ended.wait()
                self._connection.shut_down()  # nothing starts a task any more
                tasks.cancel_scope.cancel()
        finally:
            self._connection.close()
            if self._backend is not None:
                self._backend.on_closing.discard(self.notify_draining)

    def notify_draining(self, why: str | None = None) -> None:
        """Notifies the ingress that it should send no more, and why if that was not planned."""
        if self._is_draining:
            return
        self._is_draining = True
        self._send(FrameKind.DRAIN, 0, EMPTY if why is None else packed(why))

    def _end(self, why: str) -> None:
        logger.warning("the connection of %s is closed: %s", self.name, why)
        self._ended.set()

    def _on_invalid_frame(self, error: Exception) -> None:
        self._end(f"it sent an invalid frame: {type(error).__name__}: {error}")

    async def _read(self) -> None:
        try:
            self._connection.read_available(self._handle)  # what TLS has decrypted already
            await self._connection.read_in_task(self._handle)
        finally:
            if self._connection.failure is not None:
                self._end(self._connection.failure)
            self._ended.set()

    def _handle(self, frame: Frame) -> None:
        kind = frame.kind
        if kind in _WORK:
            if frame.id in self._calls:
                raise ValueError(f"call {frame.id} is under way already")
            if kind is FrameKind.START:
                if self._is_started:
                    raise ValueError("a second START")
                self._is_started = True
            if len(self._calls) >= _MOST_CALLS:
                raise ValueError(f"more than {_MOST_CALLS} calls are under way")
            self._calls[frame.id] = call = _Call()
            self._tasks.start_soon(self._work, frame, call)
        elif kind is FrameKind.CANCEL or kind is FrameKind.CREDIT:
            if (known := self._calls.get(frame.id)) is None:
                return  # it has ended
            if kind is FrameKind.CANCEL and frame.body:
                known.leave(int(unpickled(frame.body)))
            elif kind is FrameKind.CANCEL:
                known.scope.cancel()
            else:
                known.add_credit(int(unpickled(frame.body)))
        elif kind is not FrameKind.PING:
            raise ValueError(f"an unexpected {kind.name}")

    def _send(self, kind: FrameKind, id_: int, message: Message = EMPTY) -> None:
        self._connection.send(unshared(kind, id_, message))

    @holds_ctrl_c
    async def _work(self, frame: Frame, call: _Call) -> None:
        kind, message = FrameKind.END, EMPTY
        try:
            with call.scope, holding():
                try:
                    kind, message = await self._attempt(frame, call)
                except Exception as error:
                    kind, message = FrameKind.ERROR, packed(as_data(error))
        finally:
            del self._calls[frame.id]
        self._send(kind, frame.id, message)

    async def _attempt(self, frame: Frame, call: _Call) -> tuple[FrameKind, Message]:
        match frame.kind:
            case FrameKind.RUN:
                return FrameKind.RESULT, await self._run(frame, call)
            case FrameKind.STREAM:
                await self._stream(frame, call)
                return FrameKind.END, EMPTY
            case FrameKind.START:
                return FrameKind.RESULT, await self._start(frame)
            case FrameKind.RECONFIGURE:
                await self._reconfigure(unpickled(frame.body, frame.buffers))
            case _:
                await self._check_health()
        return FrameKind.RESULT, packed(None)

    async def _start(self, frame: Frame) -> Message:
        tag, self._tag = unpickled(frame.body, frame.buffers)
        backend = self._controller.backends.get(tag)
        if backend is None:
            there = ", ".join(self._controller.backends) or "none"
            raise NoSuchName(f"it has no backend {tag!r}; it has: {there}")
        supervisor = backend.supervisor
        if supervisor.wanted:  # else a request starts a replica
            await supervisor.wait_any_ready()
        description = await supervisor.wait_description()
        self._backend = backend
        backend.on_closing.add(self.notify_draining)
        description = _for_ingress(description, backend.config)
        methods = description.methods
        self._defaults = {name: Defaults(one.signature) for name, one in methods.items()}
        return packed(sendable(description))

    async def _reconfigure(self, user_config: Any) -> None:
        # Not a change of the backend's config, which is this server's: ingresses would compete.
        for managed in self._found().supervisor.ready:
            await managed.replica.reconfigure(user_config)

    async def _check_health(self) -> None:
        # One healthy replica is enough; its supervisor replaces the others.
        supervisor = self._found().supervisor
        if supervisor.wanted:
            await supervisor.wait_any_ready()
        troubles: list[str] = []
        is_healthy = False
        async with anyio.create_task_group() as tasks:

            async def check(managed: ManagedReplica) -> None:
                nonlocal is_healthy
                if (trouble := await managed.trouble()) is not None:
                    troubles.append(trouble)
                    return
                is_healthy = True  # one is enough, also while another one hangs
                tasks.cancel_scope.cancel()

            for managed in supervisor.ready:
                tasks.start_soon(check, managed)
        if troubles and not is_healthy:
            raise HandlerFailed(troubles[0])

    async def _run(self, frame: Frame, call: _Call) -> Message:
        batcher, calls = await self._opened(frame, streams=False)
        with continued(calls.trace):
            find = batcher.batcher.find
            outcomes = await find().outcomes_of(calls.items, calls.options, call.begun)
        try:
            self._refuse_unserved(outcomes)
            _raise_common(outcomes)
            return _packed(calls.method, outcomes)
        finally:
            outcomes.clear()  # the tracebacks of errors hold this frame

    async def _stream(self, frame: Frame, call: _Call) -> None:
        batcher, calls = await self._opened(frame, streams=True)
        with continued(calls.trace):
            steps = _Steps(len(calls.items))
            async with AsyncExitStack() as leaving, anyio.create_task_group() as tasks:
                pairs = zip(calls.items, calls.options, strict=True)
                for place, (item, asked) in enumerate(pairs):
                    stream = batcher.batcher.find().begin_stream_of(item, asked)
                    try:  # in their order, and not by the tasks that read them
                        await leaving.enter_async_context(stream)
                    except Exception as error:
                        steps.end(place, error)
                    else:
                        tasks.start_soon(steps.read, place, stream)
                async with aclosing(steps.each()) as each:
                    async for step in each:
                        self._refuse_unserved(step)
                        part = unshared(FrameKind.PART, frame.id, _packed(calls.method, step))
                        self._connection.send_soon(part)  # with those of other streams
                        await call.sent_step()

    async def _opened(self, frame: Frame, *, streams: bool) -> tuple[MethodBatcher, _Calls]:
        backend = self._found()
        try:
            method, items, data = unpickled(frame.body, frame.buffers)
        except Exception as error:
            raise TypeError(f"the items can't be unpickled in the model server: {error}") from error
        if len(items) > MOST_REMOTE:
            raise ValueError(f"a message has {len(items)} calls, more than {MOST_REMOTE}")
        self._counts["messages"] += 1
        self._counts["requests"] += len(items)
        batcher = backend.method_batchers.get(method)
        if batcher is None:
            try:
                batcher = await backend.method_batcher(method)
            except BatcherClosed as error:
                raise self._unserved("is closing") from error
        if batcher.streams is not streams:
            raise TypeError(
                f"{batcher.batcher.name} {'gives one result' if streams else 'streams'}"
            )
        if (defaults := self._defaults.get(method)) is not None:
            items = defaults.put_into(items)
        if data is None:
            return batcher, _Calls(method, items, [None] * len(items))
        batch = BatchAsData(*data)
        options = batch.call_options(batcher.batcher.options.priority_levels)
        return batcher, _Calls(method, items, options, batch.trace)

    def _found(self) -> Backend:
        backend = self._backend
        if backend is None:
            self._ended.set()
        if backend is None or backend.is_closing:
            raise self._unserved("is closing")
        return backend

    def _refuse_unserved(self, outcomes: list[Any]) -> None:
        """Raises `ReplicaDied`, so that the batch may run elsewhere, if nothing can serve it."""
        for slot in outcomes:
            if isinstance(slot, ReplicaDied):  # the ingress has replicas of the same name
                slot.replica = f"{slot.replica or 'a replica'} of the model server"
        # The code may raise such errors as well, for reasons of its own.
        backend = self._backend
        assert backend is not None
        is_closing = self._is_draining or backend.is_closing
        if not is_closing and backend.supervisor.ready:
            return
        kinds: set[Any] = set(map(type, outcomes))
        if is_closing and kinds == {BatcherClosed}:
            raise self._unserved("is closing")
        for place, kind in enumerate(map(type, outcomes)):
            if is_closing and kind is BatcherClosed:  # it runs elsewhere without the others
                outcomes[place] = self._unserved("is closing")
        if kinds == {BackendUnavailable}:
            # It connects again, and then waits for a replica.
            self.notify_draining("it has no replica")
            raise self._unserved("has no replica")

    def _unserved(self, why: str) -> ReplicaDied:
        return ReplicaDied(f"the backend of the model server {why}", replica=self._tag)


class _Steps:
    def __init__(self, count: int) -> None:
        self._ready: list[deque[Any]] = [deque() for _ in range(count)]
        self._has_room = [anyio.Event() for _ in range(count)]
        self._left = count
        self._is_changed = anyio.Event()

    async def read(self, place: int, stream: Any) -> None:
        ready = self._ready[place]
        end: Any = END
        try:
            async for item in stream:
                ready.append(item)
                self._is_changed.set()
                while len(ready) >= STEPS_AHEAD:
                    self._has_room[place] = anyio.Event()
                    await self._has_room[place].wait()
        except Exception as error:
            end = error
        self.end(place, end)

    def end(self, place: int, how: Any) -> None:
        self._ready[place].append(how)
        self._left -= 1
        self._is_changed.set()

    async def each(self) -> AsyncGenerator[list[Any]]:
        while self._left or any(self._ready):
            if not any(self._ready):
                self._is_changed = anyio.Event()
                await self._is_changed.wait()
            step = [ready.popleft() if ready else SKIP for ready in self._ready]
            for has_room in self._has_room:
                has_room.set()
            yield step


def _for_ingress(description: Description, config: BackendConfig) -> Description:
    """Lets each item for an open batch have a message of its own, and so an answer of its own."""
    if config.fill == "closed":
        return description
    methods = {
        name: replace(
            method,
            signature=method.open_signature or method.signature,
            streams=config.streams,
            batched=False,
        )
        for name, method in description.methods.items()
    }
    return replace(description, methods=methods)


def _raise_common(outcomes: Sequence[Any]) -> None:
    """Raises the error that a whole batch failed with, which is smaller than one for each item."""
    first = outcomes[0] if outcomes else None
    cause = first.__cause__ if isinstance(first, Exception) else None
    if not isinstance(cause, Exception) or isinstance(cause, ReplicaDied):
        return
    if all(isinstance(one, Exception) and one.__cause__ is cause for one in outcomes):
        raise cause


def _packed(method: str, slots: list[Any]) -> Message:
    check_may_leave(slots)
    message = packed_parts(slots_as_data(slots), method, "result {} of {}()", slots)
    check_size(message, f"the results of {method}()")
    return message
