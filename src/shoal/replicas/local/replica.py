"""The base class of replicas in this process: `TaskReplica`, `ThreadReplica`.

Async code runs in its caller's task, in a cancel scope, so it can be ended from outside. Plain code
runs in a thread, as a `Job`. Nothing can interrupt it; only the wait for it can be ended.
Subclasses provide the threads. `serve` owns them and ends when they end. Only a start that fails,
or the cancellation of `serve`, leaves threads behind.
"""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from contextvars import Context, copy_context
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from shoal.batching.current import running_replica, setting
from shoal.batching.decorator.block import BatcherBlock
from shoal.batching.handlers.batch_results import advice_on
from shoal.batching.handlers.handler import DONE, Handler, HoldLog, PlainSteps, in_own_context
from shoal.batching.running.stream import Stepping, running_steps
from shoal.errors import ReplicaNotStarted
from shoal.failures.exceptions import ungrouped
from shoal.failures.held import held, shown
from shoal.failures.hints import constructor_hint
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.this_loop import parking_of_this_loop
from shoal.loops.unlimited import in_thread
from shoal.replicas.code.instance import Description, Instance, is_async, is_async_class
from shoal.replicas.code.jobs import Job
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.local.work import JobThread, UnderWay
from shoal.replicas.threads import InnerCalls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.loops.parking import Scope
    from shoal.replicas.code.definition import Definition

logger: Final = logging.getLogger("shoal.replicas")


class LocalReplica(Replica):
    instance: Instance  # set when the code is constructed
    _tasks: TaskGroup

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._work = UnderWay(blueprint.identity, self.kill)
        self._starting = anyio.CancelScope()
        self._closing = anyio.CancelScope()
        self._has_threads = False
        self._threads: set[JobThread] = set()
        self._hold_logs = cache(HoldLog)

    @property
    def takes_work(self) -> bool:
        return self._work.is_open

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        self._work.parking = parking_of_this_loop()
        self._context = copy_context()  # for the threads, which outlive the calls that need them
        async with ungrouped() as self._tasks:
            try:
                self._has_threads = True
                await self._live(task_status)
            finally:
                self._work.ending.die_unasked("has ended")
                self._has_threads = False
                self._work.finish()
                for thread in self._threads:
                    thread.release()
                    if self._work.jobs:
                        thread.abandon()

    def stop(self) -> None:
        if not self._work.ending.begun.is_set():  # else a job that cleans up would be given up
            self._work.ending.stop()
            self._work.finish()
            self._starting.cancel()

    def kill(self, reason: str) -> None:
        if self._work.ending.how is None:
            self._work.ending.die(f"was killed: {reason}")
            self._work.finish()
            self._starting.cancel()
            self._closing.cancel()

    @holds_ctrl_c
    async def run(self, method: str, items: list[Any]) -> Any:
        handler = self._handler(method)
        if handler.threaded:
            job = Job(lambda: _as_plain(handler.plain_results(items)))
            return await self._in_thread(job, calls=InnerCalls())
        results = await self._work.run_batch(handler.results(items))
        if results.__class__ is list:
            return results
        return await self._work.run_batch(_converted(results))

    @holds_ctrl_c
    async def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        handler = self._handler(method)
        if not handler.threaded:
            steps = handler.steps(items)
            # One scope for all steps: the code may keep its own scopes open between steps.
            with self._work.within_scope() as scope:
                try:
                    while (step := await self._next(steps, scope)) is not DONE:
                        yield step
                finally:
                    await self._work.run(steps.aclose())
            return
        plain = PlainSteps(handler, items)
        stepping = running_steps.get(None) or Stepping()
        may_go_on = False

        def take() -> Any:
            nonlocal may_go_on
            may_go_on = False  # if this raises
            step, may_go_on = stepping.take(lambda: _as_plain(plain.next()))
            return step

        def repeats() -> bool:
            return may_go_on and not calls.is_cancelled

        calls = InnerCalls()
        job = Job(take, undo=plain.close, repeats=repeats)
        try:
            while True:
                step = await self._in_thread(job, calls=calls, began=stepping.began)
                if step is DONE:
                    return
                yield step
                self._work.check_open()
                job = job.following or Job(take, undo=plain.close, repeats=repeats)
        finally:
            stepping.has_room = False  # a step may be under way
            with anyio.CancelScope(shield=True):
                while job.following is not None:
                    job = job.following
                    if not job.has_ended:
                        calls.cancel()
                    await job.wait(self._work.parking)
                if plain.is_open and not job.is_given_up and self._has_threads:
                    await self._in_thread(Job(plain.close, undo=plain.close))

    @holds_ctrl_c
    async def reconfigure(self, user_config: Any) -> None:
        self._work.check_open()
        hook = self.instance.reconfigure_hook(user_config, self.tag)
        if not is_async(hook):
            await self._reconfigured(Job(partial(hook, user_config), "reconfigure()"))
            return
        with self._work.within_scope() as scope:
            code = self._awaited("reconfigure()", hook, user_config)
            await self._work.run(code, scope, "reconfigure()")

    @holds_ctrl_c
    async def check_health(self) -> None:
        self._work.check_open()
        hook = self.instance.hook("health")
        if hook is None:
            await anyio.lowlevel.checkpoint()
            return
        with self._work.within_scope() as scope:
            if is_async(hook):
                check = self._awaited("health()", hook)
            else:  # its thread is abandoned if it hangs when cancelled
                check = in_thread(hook, abandon_on_cancel=True)
            healthy = await self._work.run(check, scope, "health()")
        if healthy is False:
            raise RuntimeError(f"health() of {self.tag} returned False")

    @abstractmethod
    def _begin(self, job: Job, context: Context) -> None:
        """Runs a job in a thread, in a context of its own, and then calls `_answered`."""

    def _check_code(self) -> None:
        """Raises a `TypeError` for code that can't run here."""

    def _new_thread(self) -> JobThread:
        thread = JobThread()
        self._threads.add(thread)
        # In a task of its own, so that callers stop waiting when the replica is killed.
        self._context.run(self._tasks.start_soon, self._keep, thread)
        return thread

    async def _keep(self, thread: JobThread) -> None:
        try:
            await thread.run()
        finally:
            self._threads.remove(thread)

    async def _live(self, task_status: TaskStatus[Description]) -> None:
        # Batchers that the code opens belong to this replica.
        block = BatcherBlock(convert_error=self._work.convert_error, is_private=True)
        with setting(running_replica, self.blueprint.identity):
            async with block as self._work.block:
                await self._start()
                self._work.is_open = True
                task_status.started(self.instance.description)
                ending = self._work.ending
                await ending.begun.wait()
                if ending.how is None:
                    with self._closing:
                        await self._work.wait_idle()
                        await self._close()
                if ending.how is not None:
                    await self._work.wait_idle()
                    raise ending.death()

    async def _start(self) -> None:
        timeout_s = self.blueprint.options.start_timeout_s
        if timeout_s is not None:
            self._starting.deadline = anyio.current_time() + timeout_s
        cause: Exception | None = None
        try:
            with self._starting:
                await self._construct()
                self._check_code()
                if (user_config := self.blueprint.user_config) is not None:
                    takes = self.instance.reconfigure_hook(user_config, self.tag)
                    await self._call("reconfigure()", takes, user_config)
                if (hook := self.instance.hook("warm_up")) is not None:
                    await self._call("warm_up()", hook)
                await anyio.lowlevel.checkpoint()
        except Exception as error:
            cause = error
        if self._work.ending.begun.is_set():
            why = str(self._work.ending)
        elif self._starting.cancel_called:
            why = f"was not ready within {timeout_s:g} s (start_timeout_s)"
        elif cause is not None:
            why = f"could not be started: {shown(cause)}{constructor_hint(cause)}"
        else:
            return
        try:
            raise ReplicaNotStarted(f"{self.tag} {why}") from cause
        finally:
            del cause  # its traceback holds this frame

    @holds_ctrl_c
    async def _construct(self) -> None:
        definition = self.blueprint.definition
        name = f"the constructor of {definition.name}"
        if definition.import_path is not None:
            loaded = await self._in_thread(Job(definition.load, name), shield=False)
            definition = replace(definition, target=loaded)
        if is_async_class(definition.target):
            log = HoldLog(name, "do the slow part in `async def warm_up(self)`")
            code = in_own_context(_instantiated(definition), log)
            self.instance = await self._work.run(code, name=name)
        elif inspect.isclass(definition.target):
            job = Job(partial(Instance, definition), name)
            self.instance = await self._in_thread(job, shield=False)
        else:
            self.instance = held(Instance)(definition)  # runs almost no user code

    async def _close(self) -> None:
        try:
            if (hook := self.instance.hook("close")) is not None:
                await self._call("close()", hook)
        except Exception:
            logger.exception("%s: close() failed", self.tag)

    @holds_ctrl_c
    async def _call(self, name: str, hook: Callable[..., Any], *args: Any) -> None:
        """Calls a hook while no work is accepted; cancellation abandons a plain one."""
        if is_async(hook):
            await self._work.run(self._awaited(name, hook, *args), name=name)
        else:
            await self._in_thread(Job(partial(hook, *args), name), shield=False)

    async def _awaited(self, name: str, hook: Callable[..., Any], *args: Any) -> Any:
        return await in_own_context(hook(*args), self._hold_logs(f"{name} of {self.tag}"))

    async def _reconfigured(self, job: Job) -> None:
        try:
            await self._in_thread(job, shield=False)
        except anyio.get_cancelled_exc_class():
            # If it kept running, it could overwrite a later user config.
            grace_s = self.blueprint.options.cancel_grace_s
            with anyio.move_on_after(grace_s, shield=True) as waiting:
                await job.wait(self._work.parking)
            if waiting.cancelled_caught:
                self.kill(f"its reconfigure() had not ended {grace_s:g} s after it was cancelled")
            raise

    @holds_ctrl_c
    async def _next(self, steps: AsyncGenerator[Any, None], scope: Scope) -> Any:
        self._work.check_open()
        step = await self._work.run(_step(steps), scope)
        if scope.cancel_called:
            raise self._work.ending.death()  # whatever the code did on cancellation
        return step

    async def _in_thread(
        self,
        job: Job,
        *,
        shield: bool = True,
        calls: InnerCalls | None = None,
        began: Callable[[], object] | None = None,
    ) -> Any:
        if not job.has_begun:
            await anyio.lowlevel.checkpoint_if_cancelled()
            self._start_job(job, calls)
        if began is not None:
            began()
        try:
            return await job.result(self._work.parking)
        except anyio.get_cancelled_exc_class():
            if shield:
                if calls is not None:
                    calls.cancel()
                with anyio.CancelScope(shield=True):
                    await job.wait(self._work.parking)
            raise

    def _answered(self, job: Job, value: Any, error: BaseException | None) -> None:
        if error is not None:
            error = self._work.convert_error(error, job.name)
        following = job.following
        if following is not None:
            self._work.jobs.add(following)
        if not job.answer(value, error):
            if following is not None:
                following.give_up(self._work.ending.death())
            elif job.undo is not None and self._has_threads:
                self._start_job(Job(job.undo))
        self._work.jobs.discard(job)
        self._work.look_if_idle()

    def _start_job(self, job: Job, calls: InnerCalls | None = None) -> None:
        job.has_begun = True
        self._work.jobs.add(job)
        self._begin(job, self._work.context_for_thread(calls))

    def _handler(self, method: str) -> Handler:
        if not self._work.is_open:
            raise self._work.ending.death()
        try:
            return self.instance.handlers[method]
        except KeyError:
            raise self.instance.description.has_no(method) from None


async def _converted(results: Any) -> Any:
    return _as_plain(results)


async def _step(steps: AsyncGenerator[Any, None]) -> Any:
    return _as_plain(await anext(steps, DONE))


async def _instantiated(definition: Definition) -> Instance:
    return Instance(definition)


def _as_plain(results: Any) -> Any:
    """Returns results as a list, unless they are already plain or invalid."""
    # The batcher must see only plain lists: ``__len__`` and other methods of a user's class may
    # raise anything, so they have to run as part of the code that returned the object.
    if type(results) in (list, tuple) or advice_on(results) is not None:
        return results
    try:
        count = len(results)
    except TypeError:
        return results
    if getattr(results, "__iter__", None) is not None:
        return list(results)
    return [results[index] for index in range(count)]
