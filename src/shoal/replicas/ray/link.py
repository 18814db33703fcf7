"""The connection of a replica to its actor: the calls under way, and the end of the actor.

Ray fails the calls of a dead actor one by one, and not before it is certain of the death. Every
wait therefore ends with the response or with the end of the link, whichever happens first.

Ray reports a result with a callback in a thread of its own. That callback may only schedule a
function in the event loop. If it waited for the loop, it would block all other results. Awaiting
Ray's references works only with asyncio, and is no faster.

Ray has no callbacks for generators, so each stream has a thread that fetches its steps, a `Pump`.
Fetching one step at a time in a worker thread would cost a thread switch for each step.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio

from shoal.errors import ReplicaDied
from shoal.loops.private import stream_of_ray_actor
from shoal.replicas.ray.actor import CONTROL, Ending
from shoal.replicas.ray.cluster import (
    begin_use,
    check_can_be_sent,
    death_of,
    end_use,
    failure_of,
    ray,
)
from shoal.replicas.scopes import until_overdue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator
    from concurrent.futures import Future

    from shoal.replicas.ray.actor import Answer
    from shoal.replicas.ray.placing import NewActor

# How many steps of a stream an actor runs before they are fetched.
_STEPS_AHEAD: Final = 4


# How many steps of a stream are fetched in advance.
_AHEAD: Final = 2

# Ray notices a frozen node after 66 s by default, and then says so. An actor that does not answer
# for this long counts as dead. Its code may hold the GIL for nearly as long.
_PING_PERIOD_S: Final = 5.0
_PING_LIMIT_S: Final = 45.0

_DISCONNECTED: Final = "was lost: the program has disconnected from Ray"


class Pump:
    """The steps of one of Ray's generators. Only the fetching happens in a thread."""

    def __init__(
        self,
        references: Iterator[Any],
        get: Callable[[Any], Any],
        soon: Callable[..., object],
        name: str,
    ) -> None:
        # Fetched, and not taken yet.
        self.steps: deque[Any] = deque()
        self.ended = anyio.Event()
        # The error that ended the generator; None if it ended normally.
        self.error: BaseException | None = None
        # Set when one of these changes, and then replaced with a new event.
        self.change = anyio.Event()
        self._references = references
        self._get = get
        self._soon = soon
        self._permits = threading.Semaphore(_AHEAD)
        self._drops = False
        begin_use(self)
        # A daemon: if Ray never answers, the program must still be able to exit.
        threading.Thread(target=self._fetch, name=name, daemon=True).start()

    def take(self) -> Any:
        """Returns the next fetched step, and lets the thread fetch another."""
        step = self.steps.popleft()
        self._permits.release()
        return step

    def drop(self) -> None:
        """Discards all further steps; fetching continues, so that the generator does not block."""
        self._drops = True
        self.steps.clear()
        self._permits.release()

    def _fetch(self) -> None:
        error: BaseException | None = None
        try:
            while True:
                if not self._drops:
                    self._permits.acquire()
                step = self._get(next(self._references))
                self._soon(self._fetched, step)
        except StopIteration:
            pass
        except BaseException as raised:  # Ray raises SystemExit when the program disconnects
            error = raised
        end_use(self)
        self._soon(self._ended, error)

    def _fetched(self, step: Any) -> None:
        if not self._drops:
            self.steps.append(step)
            self._signal_change()

    def _ended(self, error: BaseException | None) -> None:
        self.error = error
        self.ended.set()
        self._signal_change()

    def _signal_change(self) -> None:
        self.change.set()
        self.change = anyio.Event()


class Link:
    def __init__(self, tag: str, cancel_grace_s: float, on_end: Callable[[], object]) -> None:
        # How the link ended, for messages, and Ray's error, if any.
        self.end: tuple[str, BaseException | None] | None = None
        self._on_end = on_end
        self._tag = tag
        self._grace_s = cancel_grace_s
        self._actor: Any = None
        self._soon: Callable[..., object] | None = None
        self._is_gone = anyio.Event()
        self._waiting: set[anyio.Event] = set()

    async def attach(self, actor: NewActor, soon: Callable[..., object]) -> str:
        """Connects to an actor, waits until Ray has placed it, and returns the id of its node."""
        self._actor, self._soon = actor.handle, soon
        actor.lifeline.add_done_callback(partial(soon, self._has_gone))
        actor.ending.add_done_callback(partial(soon, self._is_to_end))
        await self._wait(self._when_done(actor.ready))
        node: str = self._value(actor.ready)
        return node

    async def ask(self, name: str, *args: Any, group: str | None = None) -> Any:
        """Calls a method of the actor; if this is cancelled, the actor keeps running the call."""
        return self._taken(await self._call(name, *args, group=group))

    async def run(self, call: int, load: Any) -> Any:
        with self._sending(load):
            future: Future[Answer] = self._actor.run.remote(load).future()
        done = self._when_done(future)
        try:
            await self._wait(done)
        except anyio.get_cancelled_exc_class():
            await self._cancel(call, done)
            raise
        return self._taken(self._value(future))

    async def steps(self, call: int, load: Any) -> AsyncGenerator[Any, None]:
        assert self._soon is not None
        with self._sending(load):
            references = stream_of_ray_actor(self._actor.steps, load, _STEPS_AHEAD)
        pump = Pump(references, ray.get, self._soon, f"shoal stream of {self._tag}")
        try:
            while await self._has_step(pump):
                yield self._taken(pump.take())
        finally:
            if not pump.ended.is_set():
                pump.drop()
                await self._cancel(call, pump.ended)

    async def watch(self) -> None:
        """Ends the link when the actor does not answer, for example since its node is frozen."""
        while self.end is None:
            await anyio.sleep(_PING_PERIOD_S)
            with anyio.move_on_after(_PING_LIMIT_S) as waiting, suppress(ReplicaDied):
                await self._call("ping", group=CONTROL)
            if waiting.cancelled_caught:
                self.finish(f"died: its process did not answer for {_PING_LIMIT_S:g} s")

    async def take_frames(self) -> bytes:
        """Waits until the actor has sent frames; on cancellation, they may be lost."""
        frames: bytes = await self._call("take_frames", group=CONTROL)
        return frames

    async def put_frames(self, frames: Any) -> None:
        """Sends frames, or a reference to them, and waits until the actor has received them."""
        await self._call("put_frames", frames, group=CONTROL)

    def finish(self, how: str, cause: BaseException | None = None) -> None:
        """Ends the link: wakes the tasks that wait for the actor, and kills it. Idempotent."""
        if self.end is not None:
            return
        # The traceback's frames would keep this object and the actor's objects alive.
        self.end = (how, None if cause is None else cause.with_traceback(None))
        self._on_end()
        for event in self._waiting:
            event.set()
        self._kill()

    async def wait_gone(self) -> None:
        """Waits until the actor is gone, at most for the grace period, even when cancelled."""
        if self._actor is not None:
            # The actor holds resources of its node, which the next actor may need.
            self._kill()  # the link may have ended before the actor existed
            with anyio.move_on_after(self._grace_s, shield=True):
                await self._is_gone.wait()

    def died(self) -> ReplicaDied:
        how, cause = self.end or ("is not ready", None)
        death = ReplicaDied(f"{self._tag} {how}", replica=self._tag)
        death.__cause__ = cause
        return death

    async def _call(self, name: str, *args: Any, group: str | None) -> Any:
        method = getattr(self._actor, name)
        if group is not None:
            method = method.options(concurrency_group=group)
        with self._sending(args):
            reference = method.remote(*args)
        return await self._result(reference)

    async def _result(self, reference: Any) -> Any:
        future = reference.future()
        await self._wait(self._when_done(future))
        return self._value(future)

    async def _has_step(self, pump: Pump) -> bool:
        while not pump.steps:
            if pump.ended.is_set():
                if pump.error is not None:
                    self._raise(pump.error)
                return False
            if self.end is not None:
                raise self.died()
            await self._wait(pump.change)
        return True

    async def _wait(self, event: anyio.Event) -> None:
        if self.end is not None:
            event.set()
        self._waiting.add(event)
        try:
            await event.wait()
        finally:
            self._waiting.discard(event)

    def _when_done(self, future: Future[Any]) -> anyio.Event:
        assert self._soon is not None
        done, soon = anyio.Event(), self._soon
        future.add_done_callback(lambda _: soon(done.set))
        return done

    def _value(self, future: Future[Any]) -> Any:
        if not future.done():
            raise self.died()
        try:
            return future.result()
        except Exception as error:
            self._raise(error)

    def _taken(self, answer: Answer) -> Any:
        value, error = answer
        if error is None:
            return value
        if isinstance(error, Ending):
            self.finish(error.how)
            raise self.died()
        raise error.as_exception(self._tag)

    async def _cancel(self, call: int, done: anyio.Event) -> None:
        if self.end is not None:
            return
        self._actor.cancel.options(concurrency_group=CONTROL).remote(call)
        with until_overdue(self._grace_s) as waiting:
            await self._wait(done)
        if waiting.cancelled_caught:
            grace_s = self._grace_s
            self.finish(f"was killed: its work had not ended {grace_s:g} s after its time was up")

    @contextmanager
    def _sending(self, content: Any) -> Generator[None]:
        """Converts the errors of a call to the actor in this block."""
        if not ray.is_initialized():  # a call would end the whole process in older versions of Ray
            self.finish(_DISCONNECTED)
            raise self.died()
        try:
            yield
        except Exception as error:
            check_can_be_sent(content, self._tag)
            self.finish(f"was lost: {error}", error)
            raise self.died() from error

    def _raise(self, error: BaseException) -> NoReturn:
        if not isinstance(error, Exception):
            self.finish(_DISCONNECTED)
            raise self.died()
        how = death_of(error)
        if how is not None:
            self.finish(f"died: {how}", error)
            raise self.died()
        raise failure_of(error, self._tag) from error

    def _is_to_end(self, ending: Future[Ending]) -> None:
        if ending.exception() is None:
            self.finish(ending.result().how)

    def _has_gone(self, lifeline: Future[None]) -> None:
        error = lifeline.exception()
        self._is_gone.set()
        said = None if error is None else death_of(error)
        self.finish(f"died: {said or repr(error)}", error)

    def _kill(self) -> None:
        # After `ray.shutdown` there are no actors, and `kill` would connect again.
        if self._actor is not None and ray.is_initialized():
            with suppress(Exception):  # the program may have joined another cluster
                ray.kill(self._actor)
