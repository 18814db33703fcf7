"""The Ray actor of a replica, which runs an instance of the user's code.

The actor is a threaded one. Ray calls its methods in threads of its own, which also run plain code.
Async code runs in an event loop in one more thread. The loop is of the same kind as the caller's,
so code that is written for trio finds trio. The alternative, an asyncio actor, takes 25% more time
for a call, and has only asyncio.

Its methods are in three concurrency groups with their own threads, so that none can starve another:
the connection to the replica (`CONTROL`), the code's hooks (`HOOKS`), and the work. Ray can't
cancel calls that run in an actor's thread, so `ReplicaActor.cancel` is a method of the first group.

Errors of the code are returned as data: Ray wraps errors, and some don't survive that. An error
that would end a process is returned as an `Ending`: Ray handles such exceptions differently in each
thread, and never reports them.
"""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import anyio
from anyio.from_thread import start_blocking_portal

from shoal.batching.current import Identity, running_replica, setting
from shoal.batching.decorator.block import BatcherBlock
from shoal.failures.exceptions import ends_the_program
from shoal.failures.held import shown
from shoal.loops.event_loop import EventLoop
from shoal.replicas.code.endpoint_call import parent_channel
from shoal.replicas.code.instance import Instance, is_async_class
from shoal.replicas.code.jobs import DONE, PlainSteps, plain_results
from shoal.replicas.process.child.calls import CalledMethods, code_is_running, sent_slots
from shoal.replicas.process.child.control import ThreadsafeDraining
from shoal.replicas.process.child.endpoints import ParentChannel
from shoal.replicas.process.wire.batch import BatchAsData
from shoal.replicas.process.wire.errors import ErrorAsData, as_data
from shoal.replicas.process.wire.frames import Frame, FrameKind, FrameReader, encoded, frames_in
from shoal.replicas.process.wire.messages import EMPTY, Message
from shoal.replicas.process.wire.start import sendable
from shoal.replicas.ray.async_code import (
    ABOUT_OPEN,
    AsyncActorWork,
    AsyncSteps,
    CodeEnded,
    OpenBatches,
    as_exceptions,
)
from shoal.replicas.ray.shards import Shards
from shoal.replicas.threads import InnerCalls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from shoal.core.request import Batch
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.instance import Description

CONTROL: Final = "control"
HOOKS: Final = "hooks"
# The maximum of concurrent calls of each group. Three of `CONTROL` last as long as the actor.
GROUPS: Final = {CONTROL: 6, HOOKS: 8}
# The maximum of concurrent batches. The threads exist from the start, and take 10 kB each.
WORK_THREADS: Final = 256
# A call's number, its method, the items, and their batch. They are one object since the last two
# share the items, and since Ray takes longer for several arguments.
Load: TypeAlias = "tuple[int, str, list[Any], tuple[Any, ...] | None]"
# What the code returned, or what it raised.
Answer: TypeAlias = "tuple[Any, ErrorAsData | Ending | None]"


class Ending(NamedTuple):
    """A response that says that the replica must end, and how it ended."""

    how: str


class ReplicaActor:
    """A replica's code, in the process of a Ray actor; `loop` is the kind of its event loop."""

    def __init__(self, identity: tuple[str, str], loop: str) -> None:
        self._identity = Identity(*identity)
        self.on_answer: Callable[[Frame], object] = lambda _: None
        self._frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader: FrameReader = FrameReader()
        self._draining = ThreadsafeDraining()
        self._channel = ParentChannel(self)
        self._loop = start_blocking_portal(loop)  # until the process ends
        self._portal = self._loop.__enter__()
        self._soon = self._portal.call(EventLoop.here).soon
        self._end: Future[Ending] = Future()
        self._tasks = self._portal.wrap_async_context_manager(self._run_tasks())
        with self._code_context():
            self._open_batches = self._tasks.__enter__()
        # Deadlines are on the clock of that loop, but threads can't read it.
        self._clock_offset = self._portal.call(anyio.current_time) - time.monotonic()
        self._channel.clock_offset = self._clock_offset
        self._methods: CalledMethods
        self._instance: Any = None
        self._shards: Shards | None = None
        self._lock = threading.Lock()
        self._works: dict[int, AsyncActorWork] = {}
        # A cancellation may overtake its call, since Ray may have to fetch the call's items.
        self._cancelled_early: deque[int] = deque(maxlen=1000)

    def __repr__(self) -> str:
        return self._identity.replica  # Ray prefixes the actor's output with it

    def ping(self) -> str:
        """Returns at once, with the id of the actor's node."""
        node: str = import_module("ray").get_runtime_context().get_node_id()
        return node

    def lifeline(self) -> None:
        """Never returns; the call fails when the actor dies."""
        threading.Event().wait()

    def ending(self) -> Ending:
        """Returns when the replica must end, although no call of the program says so."""
        return self._end.result()

    def send(self, kind: FrameKind, id_: int, message: Message = EMPTY) -> None:
        """Sends a frame to the replica; from any thread."""
        self._frames.put(b"".join(encoded(kind, id_, message.parts, message.buffers)))

    def take_frames(self) -> bytes:
        """Waits until there are frames for the replica, and returns them."""
        frames = [self._frames.get()]
        while not self._frames.empty():
            frames.append(self._frames.get())
        return b"".join(frames)

    def put_frames(self, frames: bytes) -> None:
        """Takes frames of the replica, which never calls this twice at the same time."""
        for frame in frames_in(self._reader, frames):
            if frame.kind in ABOUT_OPEN:
                self._open_batches.put(frame)
                self._soon(self._open_batches.take)
            elif frame.kind is FrameKind.DRAIN:
                self._draining.set()
            else:
                self.on_answer(frame)

    def begin(
        self, definition: Definition, user_config: Any
    ) -> tuple[Description | None, ErrorAsData | None]:
        try:
            with self._code_context():
                definition = replace(definition, target=definition.load())
                if is_async_class(definition.target):
                    self._instance = instance = self._portal.call(_instantiated, definition)
                else:
                    self._instance = instance = Instance(definition)
                self._methods = CalledMethods(instance)
                if user_config is not None:
                    self._reconfigure(user_config)
                self._call_hook("warm_up")
            if import_module("ray").util.get_current_placement_group() is not None:
                self._shards = Shards(instance.target, self._shard_has_died)
        except BaseException as error:
            return None, _sendable(error)
        return sendable(instance.description), None

    def run(self, load: Load) -> Answer:
        """Runs a unary method; returns None as the results if it was cancelled."""
        try:
            handler, items = self._methods.found(*load[1:3])
            with self._at_work(load[0]) as work, self._code_context(self._batch_of(load), work):
                if work.is_cancelled:
                    return None, None
                if handler.threaded:
                    results = plain_results(handler, items)
                else:
                    results = self._portal.call(work.results, handler, items)
                if results is None:  # as work that was cancelled returns
                    return None, None
                return sent_slots(handler, items, results), None
        except BaseException as error:
            return None, self._convert_error(error)

    def steps(self, load: Load) -> Generator[Answer]:
        """Runs a generator method, until its end or until it is cancelled."""
        try:
            handler, items = self._methods.found(*load[1:3])
            with self._at_work(load[0]) as work:
                with self._code_context(self._batch_of(load), work):
                    if handler.threaded:
                        steps: Any = PlainSteps(handler, items)
                    else:
                        steps = AsyncSteps(self._portal, handler, items, work)
                    step = DONE if work.is_cancelled else steps.next()
                try:
                    while step is not DONE:
                        yield sent_slots(handler, items, step), None
                        step = DONE if work.is_cancelled else steps.next()
                finally:
                    steps.close()
        except GeneratorExit:
            raise
        except BaseException as error:
            yield None, self._convert_error(error)

    def cancel(self, call: int) -> None:
        """Cancels a call by its number: async code at once, generators after their current step."""
        with self._lock:
            work = self._works.get(call)
            if work is None:
                self._cancelled_early.append(call)
                return
            work.is_cancelled = True
        work.inner.cancel()
        self._portal.start_task_soon(work.cancel_scope_if_cancelled)

    def reconfigure(self, user_config: Any) -> Answer:
        return self._answer(lambda: self._reconfigure(user_config))

    def health(self) -> Answer:
        """Calls the code's ``health()``; the result is None if it has none."""
        return self._answer(lambda: self._call_hook("health"))

    def _answer(self, function: Callable[[], Any]) -> Answer:
        try:
            with self._code_context():
                return function(), None
        except BaseException as error:
            return None, self._convert_error(error)

    def close(self) -> Answer:
        try:
            with self._code_context():
                self._call_hook("close")
        except BaseException as error:  # the replica ends anyway
            return None, _sendable(error)
        return None, None

    def _batch_of(self, load: Load) -> Batch | None:
        data = load[-1]
        now = time.monotonic() + self._clock_offset
        return None if data is None else BatchAsData(*data).as_batch(now, self._draining)

    def _reconfigure(self, user_config: Any) -> None:
        # Raises TypeError if the code has no such hook.
        self._instance.reconfigure_hook(user_config, self._identity.replica)
        self._call_hook("reconfigure", user_config)

    def _call_hook(self, name: str, *args: Any) -> Any:
        hook = self._instance.hook(name)
        if hook is None:
            return None
        result = copy_context().run(hook, *args)
        return self._portal.call(_awaited, result) if inspect.isawaitable(result) else result

    @asynccontextmanager
    async def _run_tasks(self) -> AsyncGenerator[OpenBatches]:
        """Keeps a block for the batchers of the code, and the tasks of its open batches."""
        dumps: Any = import_module("ray").cloudpickle.dumps
        async with (
            BatcherBlock(convert_error=self._convert_batch_error),
            anyio.create_task_group() as tasks,
        ):
            yield OpenBatches(
                tasks,
                lambda opened: self._methods.found_for(opened).function,
                self._code_context,
                self._convert_open_error,
                self.send,
                self._draining,
                dumps,
            )

    def _convert_batch_error(self, error: BaseException) -> Exception:
        # Any call may wait for the batch, and may not pass the error on.
        self._must_end(_ending(error))
        ended = CodeEnded()
        ended.__cause__ = error
        return ended

    def _shard_has_died(self, how: str) -> None:
        self._must_end(Ending(how))

    def _must_end(self, ending: Ending) -> None:
        with self._lock:
            if not self._end.done():
                self._end.set_result(ending)

    def _convert_error(self, error: BaseException) -> ErrorAsData | Ending:
        error = _of_the_code(error)
        if ends_the_program(error):
            return _ending(error)
        how = None if self._shards is None else self._shards.explain(error)
        return _sendable(error) if how is None else Ending(how)

    def _convert_open_error(self, error: BaseException) -> ErrorAsData | None:
        converted = self._convert_error(error)
        if not isinstance(converted, Ending):
            return converted
        self._must_end(converted)
        return None

    @contextmanager
    def _code_context(
        self, batch: Batch | None = None, work: AsyncActorWork | None = None
    ) -> Generator[None]:
        inner = InnerCalls() if work is None else work.inner
        with (
            setting(running_replica, self._identity),
            setting(parent_channel, self._channel),
            code_is_running(batch, inner),
        ):
            yield

    @contextmanager
    def _at_work(self, call: int) -> Generator[AsyncActorWork]:
        work = AsyncActorWork()
        with self._lock:
            if call in self._cancelled_early:
                work.is_cancelled = True
                work.inner.cancel()
            self._works[call] = work
        try:
            yield work
        finally:
            with self._lock:
                del self._works[call]


async def _instantiated(definition: Definition) -> Instance:
    with as_exceptions():
        return Instance(definition)


async def _awaited(awaitable: Any) -> Any:
    with as_exceptions():
        return await awaitable


def _ending(error: BaseException) -> Ending:
    return Ending(f"was killed: its code raised {shown(error)}")


def _of_the_code(error: BaseException) -> BaseException:
    while isinstance(error, CodeEnded) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _sendable(error: BaseException) -> ErrorAsData:
    """Converts an exception to data, even if its class is in the caller's ``__main__``."""
    error = _of_the_code(error)
    cloudpickle: Any = import_module("ray.cloudpickle")
    return as_data(error, cloudpickle.dumps)
