"""The replica check: Shoal's placements pass, and each broken promise is reported."""

import os
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial

import anyio
import pytest

from shoal.batching.current import running_batch
from shoal.core.request import Batch, DispatchReason
from shoal.errors import HandlerFailed, ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.instance import Description
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.replicas.process.replica import ProcessReplica
from shoal.testing import check_replica
from shoal.testing.replicas.code import Mistake

pytestmark = pytest.mark.real_time


class Crash(Exception):
    """Simulates the end of a process."""


def crash() -> None:
    raise Crash


class Crashable(TaskReplica):
    """Dies of a `Crash`, as if it ran in its own process."""

    async def run(self, method, items):
        try:
            return await super().run(method, items)
        except Crash:
            self.kill("crashed")
            raise ReplicaDied("crashed", replica=self.tag) from None


class TellsOtherMethods(TaskReplica):
    async def _construct(self):
        await super()._construct()
        old = self.instance.description
        methods = {n: replace(m, batched=True) for n, m in old.methods.items()}
        self.instance.description = replace(old, methods=methods)


class WarmsUpTwice(TaskReplica):
    async def _construct(self):
        await super()._construct()
        await self._call("warm_up()", self.instance.hook("warm_up") or (lambda: None))


class ForgetsNames(TaskReplica):
    def __init__(self, blueprint):
        definition = replace(blueprint.definition, init_kwargs=())
        super().__init__(replace(blueprint, definition=definition))


class KnowsNoFunctions(TaskReplica):
    async def _construct(self):
        await super()._construct()
        if self.instance.hook("close") is None:
            raise TypeError("no class")


class ForgetsConfig(TaskReplica):
    async def reconfigure(self, user_config):
        await super().reconfigure("something else")


class IsReadyTooEarly(TaskReplica):
    async def serve(self, *, task_status):
        task_status.started(Description({}, False, False))
        await super().serve(task_status=task_status)


class DoesNotExplain(TaskReplica):
    async def _start(self):
        try:
            await super()._start()
        except ReplicaNotStarted:
            raise ReplicaNotStarted("it did not work") from None


class StartsForEver(TaskReplica):
    def __init__(self, blueprint):
        options = replace(blueprint.options, start_timeout_s=None)
        super().__init__(replace(blueprint, options=options))


class GivesTexts(TaskReplica):
    async def run(self, method, items):
        return list(map(str, await super().run(method, items)))


class WrapsErrors(TaskReplica):
    async def run(self, method, items):
        try:
            return await super().run(method, items)
        except Mistake as error:
            raise RuntimeError("the code failed") from error


class SendsMarksAsTexts(TaskReplica):
    async def run_stream(self, method, items):
        async with aclosing(super().run_stream(method, items)) as steps:
            async for step in steps:
                yield [one if isinstance(one, int | str) else repr(one) for one in step]


class LosesTheLastStep(TaskReplica):
    async def run_stream(self, method, items):
        last = None
        async with aclosing(super().run_stream(method, items)) as steps:
            async for step in steps:
                if last is not None:
                    yield last
                last = step
                if method != "count":
                    yield last
                    last = None


class TellsAnotherTag(TaskReplica):
    def __init__(self, blueprint):
        super().__init__(blueprint)
        self._work._identity = blueprint.identity._replace(replica="another#0")


class HasItsOwnBatches(TaskReplica):
    async def run(self, method, items):
        token = running_batch.set(Batch(0, DispatchReason.FLUSH, []))
        try:
            return await super().run(method, items)
        finally:
            running_batch.reset(token)


class MixesUpCalls(TaskReplica):
    _last = None

    async def run(self, method, items):
        self._last = items
        await anyio.lowlevel.checkpoint()
        return await super().run(method, self._last)


class LeavesGeneratorsOpen(TaskReplica):
    async def run_stream(self, method, items):
        self._kept = getattr(self, "_kept", [])
        self._kept.append(steps := super().run_stream(method, items))
        async for step in steps:
            yield step

    async def serve(self, *, task_status):
        try:
            await super().serve(task_status=task_status)
        finally:
            for steps in getattr(self, "_kept", ()):
                with anyio.CancelScope(shield=True):
                    await steps.aclose()


class LeavesThreads(TaskReplica):
    async def _in_thread(self, job, **options):
        return await super()._in_thread(job, **{**options, "shield": False})


class IsLeftInRuins(TaskReplica):
    _was_left = False

    async def run(self, method, items):
        if self._was_left:
            raise RuntimeError("in ruins")
        try:
            return await super().run(method, items)
        except anyio.get_cancelled_exc_class():
            self._was_left = True
            raise


class TakesFalseForWell(TaskReplica):
    async def check_health(self):
        with suppress(RuntimeError):
            await super().check_health()


class LooksToTheEnd(TaskReplica):
    async def check_health(self):
        with anyio.CancelScope(shield=True):
            await super().check_health()


class DoesNotClose(TaskReplica):
    async def _close(self):
        await anyio.lowlevel.checkpoint()


class DoesNotStop(TaskReplica):
    def stop(self):
        self._work.is_open = False


class DiesOfBeingStopped(TaskReplica):
    async def serve(self, *, task_status):
        await super().serve(task_status=task_status)
        raise ReplicaDied("it was stopped", replica=self.tag)


class ReturnsWhenKilled(TaskReplica):
    async def serve(self, *, task_status):
        with suppress(ReplicaDied):
            await super().serve(task_status=task_status)


class CancelsItsCallers(TaskReplica):
    """When it is killed, running work ends as if its caller had been cancelled."""

    async def run(self, method, items):
        with anyio.CancelScope():
            try:
                return await super().run(method, items)
            except ReplicaDied as error:
                if "ended" in str(error):
                    raise RuntimeError("cancelled") from error
                raise


class LetsPanicsOut(TaskReplica):
    async def run(self, method, items):
        try:
            return await super().run(method, items)
        except HandlerFailed as error:
            raise error.__cause__ from None


class WorksOnAfterTheEnd(TaskReplica):
    async def run(self, method, items):
        if self._work.ending.begun.is_set() and method == "__call__":
            return [2 * item for item in items]
        return await super().run(method, items)


class DropsOpenBatches(TaskReplica):
    async def run_open(self, method, batch):
        await anyio.lowlevel.checkpoint()


class KeepsPlaces(TaskReplica):
    """Its code does not learn of callers that leave an open batch."""

    async def run_open(self, method, batch):
        async for request in batch:
            if isinstance(request.item, str):
                self.instance.target._folder.note(f"holds {request.item}")
                await anyio.sleep_forever()
            elif request.item < 0:
                request.fail(Mistake())
            else:
                request.finish((2 * request.item, self.tag))


class LosesTheFirstItem(TaskReplica):
    async def run_open(self, method, batch):
        if method != "open_streams":
            await super().run_open(method, batch)
            return
        async for request in batch:
            for number in range(1, request.item):
                await request.send(number)
            request.finish()


class SurvivesBeingKilled(TaskReplica):
    async def run_open(self, method, batch):
        try:
            await super().run_open(method, batch)
        except ReplicaDied as error:
            raise RuntimeError("it is gone") from error


class BindsAnyCode(TaskReplica):
    def open_binding(self, method):
        return super().open_binding("open_batch")


BROKEN = {
    BindsAnyCode: "refuses other code",
    DropsOpenBatches: "answers each request of an open batch",
    KeepsPlaces: "a caller that leaves an open batch frees its place",
    LosesTheFirstItem: "run_open streams what the code sends",
    SurvivesBeingKilled: "kill fails the requests of an open batch",
    TellsOtherMethods: "describes the methods",
    WarmsUpTwice: "in this order and once each",
    ForgetsNames: "init args",
    KnowsNoFunctions: "import path",
    ForgetsConfig: "reconfigure calls the code",
    IsReadyTooEarly: "before it is ready",
    DoesNotExplain: "a start that fails",
    StartsForEver: "longer than start_timeout_s",
    GivesTexts: "run returns what the code returned",
    WrapsErrors: "keeps its type",
    SendsMarksAsTexts: "passed on unchanged",
    LosesTheLastStep: "step by step",
    TellsAnotherTag: "which backend and replica it is in",
    HasItsOwnBatches: r"current_batch\(\)",
    MixesUpCalls: "its own result",
    LeavesGeneratorsOpen: "with the code's generator",
    LeavesThreads: "ends only when its work has ended",
    IsLeftInRuins: "continues after a call was cancelled",
    TakesFalseForWell: "check_health raises if",
    LooksToTheEnd: "concurrently with the work",
    DoesNotClose: r"stop calls close\(\) once",
    DoesNotStop: r"stop calls close\(\) once.* nothing happened for 2 s$",
    DiesOfBeingStopped: r"stop calls close\(\) once",
    ReturnsWhenKilled: "kill makes running work",
    CancelsItsCallers: "if serve is cancelled",
    LetsPanicsOut: "that is no Exception",
    WorksOnAfterTheEnd: "after its end",
}
SEEN_IN_ASYNC_CODE = {
    BindsAnyCode,
    IsLeftInRuins,
    DropsOpenBatches,
    KeepsPlaces,
    LosesTheFirstItem,
    SurvivesBeingKilled,
}


async def test_a_task_replica_keeps_its_promises():
    await check_replica(TaskReplica)


async def test_a_thread_replica_keeps_its_promises():
    await check_replica(ThreadReplica, kinds=["plain"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("anyio_backend", "kind"),
    [
        ("trio", "async"),
        ("asyncio", "plain"),
        pytest.param("trio", "plain", marks=pytest.mark.soak),
        pytest.param("asyncio", "async", marks=pytest.mark.soak),
    ],
    indirect=["anyio_backend"],
)
async def test_a_process_replica_keeps_its_promises(kind):
    end = partial(os._exit, 3)
    await check_replica(ProcessReplica, kinds=[kind], crash=end, patience_s=40)


async def test_a_replica_that_dies_of_a_crash_keeps_its_promises():
    await check_replica(Crashable, kinds=["async"], crash=crash)


@pytest.mark.one_loop
async def test_a_replica_that_survives_a_crash_breaks_a_promise():
    with pytest.raises(AssertionError, match=r"^TaskReplica breaks .* ends its process.*Crash"):
        await check_replica(TaskReplica, kinds=["async"], crash=crash)


@pytest.mark.one_loop
@pytest.mark.parametrize("placement", BROKEN, ids=lambda placement: placement.__name__)
async def test_a_promise_that_is_broken_is_named(placement):
    kind = "async" if placement in SEEN_IN_ASYNC_CODE else "plain"
    message = rf"^{placement.__name__} breaks a promise: [^;]*{BROKEN[placement]}"
    with pytest.raises(AssertionError, match=message):
        await check_replica(placement, kinds=[kind], patience_s=2.0)


@pytest.mark.one_loop
async def test_the_report_says_with_which_code_and_how():
    with pytest.raises(AssertionError) as found:
        await check_replica(GivesTexts, kinds=["async"])
    assert str(found.value).endswith(
        "; with async code, __call__ of [1, 2, 3] gave ['2', '4', '6'], not [2, 4, 6]"
    )
