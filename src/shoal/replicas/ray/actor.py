"""What runs in a Ray actor: an instance of the user's code, and who may ask it for what.

The actor is a threaded one. Ray calls its methods in threads of its own, so plain code needs no
other. Async code runs in an event loop in one more thread, of the kind that the caller's program
has, so that code which is written for trio finds trio. The rival, an asyncio actor, takes a quarter
more time for a call, and its loop is of one kind.

Its methods are in three groups, each with its threads, so that none can starve another: what keeps
the actor in touch with its replica (`CONTROL`), the code's hooks (`HOOKS`), and the work. Ray can't
cancel what runs in an actor's thread, so `ReplicaActor.cancel` is a method of the first group.

What the code raises is returned, as data: Ray wraps errors, and some don't survive that. What would
end a process is returned as an `Ending`: how Ray takes that depends on the thread, and none of its
ways says what it was.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import anyio
from anyio.from_thread import start_blocking_portal

from shoal.batching.current import running_batch
from shoal.batching.decorator.block import BatcherBlock
from shoal.batching.failures.exceptions import ends_the_program
from shoal.batching.failures.held import shown
from shoal.replicas.code.current import Identity, running_replica
from shoal.replicas.code.instance import Instance
from shoal.replicas.code.jobs import DONE, PlainMethod
from shoal.replicas.process.wire.errors import ErrorAsData, as_data, slots_as_data
from shoal.replicas.process.wire.signatures import Defaults, DescriptionAsData, description_as_data
from shoal.replicas.ray.async_code import AsyncActorWork, AsyncSteps, CodeEnded, as_exceptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from shoal.batching.handlers.handler import Handler
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.process.wire.batch import BatchAsData

CONTROL: Final = "control"
HOOKS: Final = "hooks"
GROUPS: Final = {CONTROL: 5, HOOKS: 8}
"""How many calls of each group run at once; two of the first last as long as the actor."""

WORK_THREADS: Final = 256
"""How many batches an actor runs at once. They are there from the start, and take 10 kB each."""

Load: TypeAlias = "tuple[list[Any], BatchAsData | None]"
"""What a method is called with, and the batch that it is; in one, since they share the items."""

Answer: TypeAlias = "tuple[Any, ErrorAsData | Ending | None]"
"""What the code gave back; or what it raised."""


class Ending(NamedTuple):
    """Says that the replica is to end.

    Attributes:
        how: What happened to it, such as ``"was killed: its code raised SystemExit(3)"``.
    """

    how: str


class ReplicaActor:
    """A replica's code, in the process of a Ray actor.

    Args:
        identity: The names of the replica.
        loop: The event loop for its async code, ``"trio"`` or ``"asyncio"``.
    """

    def __init__(self, identity: tuple[str, str], loop: str) -> None:
        self._identity = Identity(*identity)
        self._loop = start_blocking_portal(loop)  # until the process ends
        self._portal = self._loop.__enter__()
        self._end: Future[Ending] = Future()
        self._batchers = self._portal.wrap_async_context_manager(self._gathering())
        self._batchers.__enter__()
        # Deadlines are on the clock of that loop, and are wanted in threads that can't ask it.
        self._clock_offset = self._portal.call(anyio.current_time) - time.monotonic()
        self._methods: dict[str, _Method] = {}
        self._instance: Any = None
        self._lock = threading.Lock()
        self._works: dict[int, AsyncActorWork] = {}
        # A cancellation may overtake what it is for, whose items may have to be fetched.
        self._left_early: deque[int] = deque(maxlen=1000)

    def __repr__(self) -> str:
        return self._identity.replica  # Ray puts it in front of what the actor prints

    def ping(self) -> None:
        """Answers."""

    def lifeline(self) -> None:
        """Never answers: it fails when the actor has died."""
        threading.Event().wait()

    def ending(self) -> Ending:
        """Answers when code that batches calls has raised what ends a process."""
        return self._end.result()

    def begin(
        self, definition: Definition, user_config: Any
    ) -> tuple[DescriptionAsData | None, ErrorAsData | None]:
        """Starts the code, and says what it can do."""
        try:
            with self._inside():
                self._instance = instance = Instance(definition)
                for name, method in instance.description.methods.items():
                    plain = PlainMethod(instance.handlers[name], batched=method.batched)
                    defaults = Defaults(method.signature)
                    self._methods[name] = _Method(instance.handlers[name], plain, defaults)
                if user_config is not None:
                    self._reconfigure(user_config)
                self._call_hook("warm_up")
        except BaseException as error:
            return None, _sendable(error)
        return description_as_data(instance.description), None

    def run(self, call: int, method: str, load: Load) -> Answer:
        """Runs a unary method; gives back None if it was cancelled."""
        try:
            found, items = self._found(method, load)
            with self._inside(load), self._at_work(call) as work:
                if work.is_left:
                    return None, None
                if found.handler.threaded:
                    results = found.plain.results(items)
                else:
                    results = self._portal.call(work.results, found.handler, items)
                return slots_as_data(results), None
        except BaseException as error:
            return None, _told(error)

    def steps(self, call: int, method: str, load: Load) -> Generator[Answer]:
        """Runs a generator method, until its end or until it is cancelled."""
        try:
            found, items = self._found(method, load)
            with self._at_work(call) as work:
                with self._inside(load):
                    if found.handler.threaded:
                        steps: Any = found.plain.steps(items)
                    else:
                        steps = AsyncSteps(self._portal, found.handler, items, work)
                    step = DONE if work.is_left else steps.next()
                try:
                    while step is not DONE:
                        yield slots_as_data(step), None
                        step = DONE if work.is_left else steps.next()
                finally:
                    steps.close()
        except GeneratorExit:
            raise
        except BaseException as error:
            yield None, _told(error)

    def cancel(self, call: int) -> None:
        """Cancels what runs under a number: async code at once, generators after their step."""
        with self._lock:
            work = self._works.get(call)
            if work is None:
                self._left_early.append(call)
                return
            work.is_left = True
        self._portal.start_task_soon(work.cancel_if_left)

    def reconfigure(self, user_config: Any) -> Answer:
        """Gives the code a new user config."""
        try:
            with self._inside():
                self._reconfigure(user_config)
        except BaseException as error:
            return None, _told(error)
        return None, None

    def health(self) -> Answer:
        """Asks for the code's health; None if it has no opinion."""
        try:
            with self._inside():
                return self._call_hook("health"), None
        except BaseException as error:
            return None, _told(error)

    def close(self) -> Answer:
        """Has the code close what it holds."""
        try:
            with self._inside():
                self._call_hook("close")
        except BaseException as error:  # it ends as it is
            return None, _sendable(error)
        return None, None

    def _found(self, name: str, load: Load) -> tuple[_Method, list[Any]]:
        self._instance.description.method(name)  # or says which there are
        found = self._methods[name]
        return found, found.defaults.put_into(load[0])

    def _reconfigure(self, user_config: Any) -> None:
        if self._instance.hook("reconfigure") is None:
            raise TypeError(
                f"{self._identity.replica} was given user_config={user_config!r:.80}, but its code "
                "has no reconfigure(user_config) that would take it"
            )
        self._call_hook("reconfigure", user_config)

    def _call_hook(self, name: str, *args: Any) -> Any:
        hook = self._instance.hook(name)
        if hook is None:
            return None
        result = hook(*args)
        return self._portal.call(_awaited, result) if inspect.isawaitable(result) else result

    @asynccontextmanager
    async def _gathering(self) -> AsyncGenerator[None]:
        """The code's batched functions and methods open in this block."""
        async with BatcherBlock(told=self._told_in_batch):
            yield

    def _told_in_batch(self, error: BaseException) -> Exception:
        # Who waits for the batch may be any call, or none that passes the error on.
        if not self._end.done():
            self._end.set_result(_ending(error))
        told = CodeEnded()
        told.__cause__ = error
        return told

    @contextmanager
    def _inside(self, load: Load | None = None) -> Generator[None]:
        """What the code may ask about where it is, in this thread and what it starts."""
        replica_token = running_replica.set(self._identity)
        batch_token = None
        if load is not None and load[1] is not None:
            now = time.monotonic() + self._clock_offset
            batch_token = running_batch.set(load[1].as_batch(now))
        try:
            yield
        finally:
            if batch_token is not None:
                running_batch.reset(batch_token)
            running_replica.reset(replica_token)

    @contextmanager
    def _at_work(self, call: int) -> Generator[AsyncActorWork]:
        work = AsyncActorWork()
        with self._lock:
            work.is_left = call in self._left_early
            self._works[call] = work
        try:
            yield work
        finally:
            with self._lock:
                del self._works[call]


class _Method:
    """A method of the code, in all that is needed to call it."""

    def __init__(self, handler: Handler, plain: PlainMethod, defaults: Defaults) -> None:
        self.handler = handler
        self.plain = plain
        self.defaults = defaults


async def _awaited(awaitable: Any) -> Any:
    with as_exceptions():
        return await awaitable


def _told(error: BaseException) -> ErrorAsData | Ending:
    """Makes of what the code raised, once it was ready, what the replica is told."""
    error = _of_the_code(error)
    return _ending(error) if ends_the_program(error) else _sendable(error)


def _ending(error: BaseException) -> Ending:
    return Ending(f"was killed: its code raised {shown(error)}")


def _of_the_code(error: BaseException) -> BaseException:
    while isinstance(error, CodeEnded) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _sendable(error: BaseException) -> ErrorAsData:
    """Takes an exception apart; those whose class is in the caller's ``__main__`` too."""
    error = _of_the_code(error)
    found = as_data(error)
    if found.pickled is None:
        cloudpickle: Any = import_module("ray.cloudpickle")
        try:
            data = cloudpickle.dumps(error)
            again = cloudpickle.loads(data)
            if type(again) is type(error) and str(again) == str(error):
                return found._replace(pickled=data)
        except BaseException:  # noqa: S110 - whatever a foreign class does; its text is sent
            pass
    return found
