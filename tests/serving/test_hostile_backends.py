"""User code in a backend may raise anything: it ends its batch or its replica, and nothing else."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pydantic
import pytest

import shoal
from base_exceptions import Panic
from serving.scenes import deployed
from shoal.errors import BatcherClosed, HandlerFailed, ReplicaDied, ReplicaNotStarted
from shoal.replicas.contract import Blueprint
from shoal.replicas.local.task import TaskReplica
from shoal.serving.controller.controller import Controller
from shoal.serving.controller.endpoints import EndpointHandle
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


ENDS = {"exit": lambda: SystemExit(3), "ctrl-c": KeyboardInterrupt}
ERRORS = {"panic": lambda: Panic("index"), "cancelled": asyncio.CancelledError}
RAISES: dict[Any, Any] = {**ENDS, **ERRORS}
# What ends a replica, and what ends a batch: elsewhere than in the code itself.
ONE_OF_EACH = pytest.mark.parametrize("how", ["exit", "cancelled"])


def answered(item: Any) -> Any:
    if item in RAISES:
        raise RAISES[item]()
    return item


class Async:
    """Raises what its items, or its user config, say."""

    def __init__(self, start: str = "") -> None:
        answered(start)
        self.is_well = True

    async def __call__(self, items: list[Any]) -> list[Any]:
        await anyio.lowlevel.checkpoint()
        return [answered(item) for item in items]

    async def stream(self, items: list[Any]) -> AsyncIterator[list[Any]]:
        yield items
        yield [answered(item) for item in items]

    async def reconfigure(self, user_config: Any) -> None:
        answered(user_config)


class Plain:
    def __init__(self, start: str = "") -> None:
        answered(start)

    def __call__(self, items: list[Any]) -> list[Any]:
        return [answered(item) for item in items]

    def stream(self, items: list[Any]) -> Iterator[list[Any]]:
        yield items
        yield [answered(item) for item in items]

    def reconfigure(self, user_config: Any) -> None:
        answered(user_config)


PLACES = pytest.mark.parametrize(
    ("code", "placement"), [(Async, "task"), (Plain, "task"), (Plain, "thread")]
)


async def neighbour(items: list[Any]) -> list[Any]:
    return items


@asynccontextmanager
async def served(
    code: Any, placement: str, *args: Any, **config: Any
) -> AsyncGenerator[tuple[Controller, EndpointHandle]]:
    """Serves some code, beside a neighbour that must be well in the end."""
    with anyio.fail_after(HANG_S):
        async with Controller() as controller:
            other = await deployed(controller, "n", neighbour, config={"placement": "task"})
            config = {"placement": placement, **config}
            handle = await deployed(controller, "b", code, *args, config=config, endpoint="e")
            yield controller, handle
            assert await other.call("well") == "well"


async def error_of(awaitable: Any) -> Exception:
    with pytest.raises(Exception) as raised:
        await awaitable
    return raised.value


async def note_end(outcomes: dict[Any, Any], handle: EndpointHandle, item: Any) -> None:
    try:
        outcomes[item] = await handle.call(item)
    except ReplicaDied as died:
        outcomes[item] = died


async def well_again(handle: EndpointHandle) -> None:
    """Waits for the replica that takes the place of one that has ended."""
    while True:
        try:
            assert await handle.call("well") == "well"
        except ReplicaDied:
            await anyio.sleep(0.01)
        else:
            return


@pytest.mark.parametrize(
    ("config", "outcomes"),
    [({}, "died"), ({"retries": 1}, "answered"), ({"isolate_errors": True}, "answered")],
)
@pytest.mark.parametrize("swallows", [False, True])
async def test_batches_beside_one_that_ends_its_replica_end_with_it(config, outcomes, swallows):
    began = anyio.Event()

    async def code(items: list[Any]) -> list[Any]:
        if "exit" in items:
            await began.wait()
            raise SystemExit(3)
        if not began.is_set():
            began.set()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                if not swallows:
                    raise
        return items

    several = {"max_batch_size": 2, "batch_wait_timeout_s": 0.05, "max_concurrent_batches": 2}
    async with served(code, "task", **several, **config) as (_, handle):
        results: dict[Any, Any] = {}

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_end, results, handle, 1)
            tasks.start_soon(note_end, results, handle, 2)
            await began.wait()
            tasks.start_soon(note_end, results, handle, "exit")
            await well_again(handle)
        assert isinstance(results["exit"], ReplicaDied)
        beside = [results[1], results[2]]
        if outcomes == "answered":
            assert beside == [1, 2]
        else:
            assert [type(one) for one in beside] == [ReplicaDied, ReplicaDied]


@PLACES
async def test_what_the_code_raises_ends_its_batch_or_its_replica(code, placement):
    async with served(code, placement) as (controller, handle):
        for how in (*RAISES, *RAISES):
            error = await error_of(handle.call(how))
            assert type(error) is (ReplicaDied if how in ENDS else HandlerFailed), how
            await well_again(handle)
        assert (await controller.status()).backends["b"].deaths == 2 * len(ENDS)


@PLACES
async def test_so_does_what_a_generator_raises(code: Any, placement: str) -> None:
    async with served(code, placement) as (_, handle):
        for how in RAISES:
            async with handle.options(method_name="stream").stream(how) as stream:
                assert await anext(stream) == how
                error = await error_of(anext(stream))
            assert type(error) is (ReplicaDied if how in ENDS else HandlerFailed), how
            await well_again(handle)


@PLACES
async def test_a_constructor_and_a_config_that_raise_it_are_refused(code, placement):
    async with served(code, placement) as (controller, handle):
        for how in RAISES:
            with pytest.raises(ReplicaNotStarted):
                await controller.create_backend("c", code, how, config={"placement": placement})
            assert await handle.call("well") == "well"
            await error_of(controller.update_backend_config("b", {"user_config": how}))
            await well_again(handle)


@ONE_OF_EACH
@pytest.mark.parametrize("name", ["batch_size_fn", "bucket_by", "split", "pad"])
async def test_a_function_of_one_item_fails_its_call_alone(name: str, how: str) -> None:
    def function(item: Any, *_: Any) -> Any:
        raised = answered(item[0] if isinstance(item, list) else item)
        return {"bucket_by": raised, "split": [raised], "pad": [raised] * 2}.get(name, 1)

    more: dict[str, Any] = {
        "split": {"batch_size_fn": lambda _: 9, "join": list, "max_batch_size": 2},
        "pad": {"allowed_batch_sizes": [2], "max_batch_size": 2},
    }
    config = {name: function, **more.get(name, {})}
    async with served(Async, "task", **config) as (_, handle):
        error = await error_of(handle.call(how))
        assert type(error) is HandlerFailed
        if name != "split":
            assert await handle.call("well") == "well"


class OwnRule(shoal.policies.WholeQueuePolicy):
    """Raises, in one of its methods, what a queued request says."""

    raises_in = ""

    def __init__(self, _options: Any) -> None:
        super().__init__()

    def _say(self, method: str, queue: Any) -> None:
        if method == self.raises_in:
            for request in queue:
                answered(request.item)

    def choose(
        self, queue: Sequence[shoal.Request], now: float, pressure: shoal.policies.Pressure | None
    ) -> tuple[Sequence[shoal.Request], shoal.DispatchReason]:
        self._say("choose", queue)
        return queue[:1], shoal.DispatchReason.FULL

    def add(self, request: shoal.Request) -> bool:
        self._say("add", [request])
        return super().add(request)

    def take(self, dispatch: shoal.policies.Dispatch) -> list[shoal.Request]:
        self._say("take", self._queue)
        return super().take(dispatch)

    def remove(self, request: shoal.Request) -> None:
        self._say("remove", [request])
        super().remove(request)


@ONE_OF_EACH
@pytest.mark.parametrize("mend", ["restart", "update"])
@pytest.mark.parametrize("method", ["choose", "take"])
async def test_a_policy_breaks_its_own_batcher_alone(method: str, mend: str, how: str) -> None:
    class Rule(OwnRule):
        raises_in = method

    async with served(Async, "task", policy=Rule) as (controller, handle):
        assert await handle.call("well") == "well"
        for _ in range(2):
            error = await error_of(handle.call(how))
            assert type(error) is BatcherClosed
            cause: Any = error.__cause__
            assert type(cause) is HandlerFailed
            assert type(cause.__cause__) is type(RAISES[how]())
            status = (await controller.status()).backends["b"]
            assert status.state == "unavailable"
            assert type(RAISES[how]()).__name__ in str(status.failure)
            assert type(await error_of(handle.call("well"))) is BatcherClosed
            if mend == "restart":
                await controller.restart_backend("b")
            else:
                await controller.update_backend_config("b", {"max_batch_size": 3})
            assert (await controller.status()).backends["b"].state == "ready"
            assert await handle.call("well") == "well"


class Refusing(OwnRule):
    raises_in = "add"


class Sick(Async):
    async def health(self) -> None:
        answered("panic")


class Cold(Plain):
    def warm_up(self) -> None:
        answered("panic")


class Loose(Async):
    async def close(self) -> None:
        answered("panic")


@pytest.mark.parametrize(
    ("named", "config"),
    [
        ("the constructor of Plain", {"code": Plain, "args": ["panic"]}),
        ("reconfigure()", {"user_config": "panic"}),
        ("warm_up()", {"code": Cold}),
        ("health()", {"code": Sick}),
        ("the policy", {"policy": Refusing, "item": "panic"}),
        ("policy", {"policy": lambda _: answered("panic")}),
        ("bucket_by", {"bucket_by": lambda _: answered("panic"), "item": 1}),
        ("batch_size_fn", {"batch_size_fn": lambda _: answered("panic"), "item": 1}),
        ("the handler", {"item": "panic"}),
        ("close()", {"code": Loose, "item": 1}),
    ],
)
async def test_an_error_says_what_raised_it(named, config, caplog):
    config = {"code": Async, "args": [], "placement": "task", **config}
    code, args, item = config.pop("code"), config.pop("args"), config.pop("item", None)
    told: list[Exception] = []
    async with Controller() as controller:
        try:
            await (await deployed(controller, "c", code, *args, config=config)).call(item)
        except Exception as error:
            told.append(error)
    causes = [*told, *(error.__cause__ for error in told)]
    said = "\n".join([*map(str, causes), caplog.text])
    assert f"{named} raised Panic: index" in said, said


@ONE_OF_EACH
async def test_a_policy_that_can_not_be_made_is_refused(how: str) -> None:
    def policy(_options: Any) -> Any:
        answered(how)

    async with served(Async, "task") as (controller, handle):
        await error_of(controller.update_backend_config("b", {"policy": policy}))
        assert await handle.call("well") == "well"
        config = {"placement": "task", "policy": policy}
        await error_of(controller.create_backend("c", Async, config=config))


@ONE_OF_EACH
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_a_health_check_and_a_close_may_raise_it(placement: str, how: str) -> None:
    class Sick(Plain):
        checks = 0

        def health(self) -> None:
            self.checks += 1
            if self.checks == 2 and not was_sick:  # the first one is part of the start
                was_sick.append(how)
                anyio.from_thread.run_sync(checked.set)
                answered(how)

        def close(self) -> None:
            answered(how)

    was_sick: list[str] = []
    checked = anyio.Event()
    async with served(Sick, placement, health_check_period_s=0.02) as (_, handle):
        await checked.wait()
        await well_again(handle)


class Anything:
    """Raises, whatever is done with it, once it is armed."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.is_armed = True

    def raises(self, *_: Any) -> Any:
        if self.is_armed:
            answered(self.how)
        return 1

    __len__ = __iter__ = __bool__ = __repr__ = __str__ = __reduce__ = raises  # type: ignore[assignment]
    __float__ = __eq__ = __hash__ = __lt__ = __call__ = raises  # type: ignore[assignment]


class WithNoClass(Anything):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        answered(self.how)


@ONE_OF_EACH
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_results_in_a_class_that_raises_fail_their_batch(placement: str, how: str) -> None:
    class Gives(Plain):
        def __call__(self, items: list[Any]) -> Any:
            return Anything(how) if items == ["results"] else items

        def stream(self, items: list[Any]) -> Iterator[Any]:
            yield items
            yield Anything(how) if items == ["results"] else items

    async with served(Gives, placement) as (_, handle):
        error = await error_of(handle.call("results"))
        assert type(error) is (ReplicaDied if how in ENDS else HandlerFailed)
        await well_again(handle)
        async with handle.options(method_name="stream").stream("results") as stream:
            assert await anext(stream) == "results"
            error = await error_of(anext(stream))
        assert type(error) is (ReplicaDied if how in ENDS else HandlerFailed)
        await well_again(handle)


@ONE_OF_EACH
async def test_an_item_and_a_result_may_raise_whatever_is_done_with_them(how: str) -> None:
    class Takes:
        async def __call__(self, items: list[Any]) -> list[Any]:
            return items

        async def stream(self, items: list[Any]) -> AsyncIterator[list[Any]]:
            yield items

    async with served(Takes, "task") as (_, handle):
        item = WithNoClass(how)
        result = await handle.call(item)
        async with handle.options(method_name="stream").stream(item) as stream:
            step = await anext(stream)
    is_it = (result is item, step is item)
    assert is_it == (True, True)


@ONE_OF_EACH
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_an_error_that_can_not_be_shown_fails_its_batch(placement: str, how: str) -> None:
    class Unspeakable(ValueError):
        def __str__(self) -> str:
            return str(answered(how))

        __repr__ = __str__

        def __reduce__(self) -> Any:
            return answered(how)

    class Speechless(SystemExit):
        __str__ = __repr__ = Unspeakable.__str__

    class Raises(Plain):
        def __call__(self, items: list[Any]) -> list[Any]:
            if items == ["raise"]:
                raise Unspeakable
            if items == ["exit"]:
                raise Speechless
            return [Unspeakable() if item == "put" else item for item in items]

    async with served(Raises, placement) as (_, handle):
        for item in ("raise", "put"):
            error = await error_of(handle.call(item))
            assert type(error) is HandlerFailed
        assert type(await error_of(handle.call("exit"))) is ReplicaDied
        await well_again(handle)


@ONE_OF_EACH
@pytest.mark.parametrize("method", ["__hash__", "__eq__"])
async def test_a_key_that_raises_breaks_its_own_batcher_at_most(method: str, how: str) -> None:
    is_armed = False

    class Key:
        def __hash__(self) -> int:
            if is_armed and method == "__hash__":
                answered(how)
            return 1

        def __eq__(self, other: object) -> bool:
            if is_armed and method == "__eq__":
                answered(how)
            return isinstance(other, Key)

    async def run(items: list[Any]) -> list[Any]:
        nonlocal is_armed
        await anyio.lowlevel.checkpoint()
        if items == ["arms"]:
            is_armed = True
            await anyio.sleep(0.02)
        return items

    config = {"bucket_by": lambda _: Key(), "max_batch_size": 1}
    async with served(run, "task", **config) as (controller, handle):
        async with anyio.create_task_group() as tasks:

            async def call(item: Any) -> None:
                with anyio.move_on_after(5) as scope:
                    try:
                        await handle.call(item)
                    except Exception as error:
                        assert isinstance(error, BatcherClosed | HandlerFailed)  # noqa: PT017
                assert not scope.cancelled_caught

            for item in ("arms", "a", "b", "c"):
                tasks.start_soon(call, item)
        is_armed = False
        await controller.restart_backend("b")
        assert await handle.call("well") == "well"


@ONE_OF_EACH
async def test_a_user_config_that_raises_is_refused(how: str) -> None:
    class Config(Anything):
        def __init__(self) -> None:
            super().__init__(how)
            self.is_armed = False

    class Takes(Async):
        async def reconfigure(self, user_config: Any) -> None:
            await anyio.lowlevel.checkpoint()

    given, other = Config(), Config()
    async with served(Takes, "task", user_config=given) as (controller, handle):
        given.is_armed = other.is_armed = True
        await error_of(controller.update_backend_config("b", {"user_config": other}))
        assert await handle.call("well") == "well"
        config = {"placement": "task", "user_config": other}
        await error_of(controller.create_backend("c", neighbour, config=config))


@ONE_OF_EACH
@pytest.mark.parametrize("placement", ["task", "thread"])
async def test_attributes_that_raise_end_their_replica_at_most(placement: str, how: str) -> None:
    class Looked(Plain):
        raises_at = ""

        def __getattribute__(self, name: str) -> Any:
            if name == type(self).raises_at:
                answered(how)
            return super().__getattribute__(name)

        def health(self) -> None:
            pass

        def close(self) -> None:
            pass

    async with served(Looked, placement, health_check_period_s=0.01) as (controller, handle):
        Looked.raises_at = "health"
        while not (await controller.status()).backends["b"].deaths:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        Looked.raises_at = ""
        await controller.restart_backend("b")
        await well_again(handle)
        Looked.raises_at = "close"


@ONE_OF_EACH
async def test_a_module_that_raises_when_it_is_imported_is_refused(how, tmp_path, monkeypatch):
    module = f"raises_{how.replace('-', '_')}"
    text = {"exit": "raise SystemExit(3)", "ctrl-c": "raise KeyboardInterrupt"}
    (tmp_path / f"{module}.py").write_text(text.get(how, "class P(BaseException): pass\nraise P"))
    monkeypatch.syspath_prepend(str(tmp_path))
    async with served(Async, "task") as (controller, handle):
        for name in ("bucket_by", "policy"):
            await error_of(controller.update_backend_config("b", {name: f"{module}:f"}))
        config = {"placement": "task"}
        await error_of(controller.create_backend("c", f"{module}:f", config=config))
        await error_of(controller.shadow_traffic("e", "n", 1.0, compare=f"{module}:f"))
        assert await handle.call("well") == "well"


@ONE_OF_EACH
async def test_a_comparison_that_raises_is_a_failure_of_its_shadow_alone(how: str) -> None:
    compared = 0

    def compare(first: Any, second: Any) -> Any:
        nonlocal compared
        compared += 1
        return answered(how) if compared == 1 else Anything(how)

    async with served(Async, "task") as (controller, handle):
        await controller.shadow_traffic("e", "n", 1.0, compare=compare)
        assert [await handle.call(item) for item in ("one", "two")] == ["one", "two"]
        shadow = (await controller.status()).endpoints["e"].shadows[0]
        while shadow.failed < 2:
            await anyio.sleep(0.001)
            shadow = (await controller.status()).endpoints["e"].shadows[0]
        assert (shadow.agreed, shadow.disagreed) == (0, 0)
        assert (await controller.status()).endpoints["e"].errors == 0


class Checked(pydantic.BaseModel):
    """Raises, when a body is read, what it says."""

    said: str

    @pydantic.field_validator("said")
    @classmethod
    def _is_answered(cls, said: str) -> str:
        return str(answered(said))


@ONE_OF_EACH
async def test_a_validator_that_raises_fails_its_request_over_http(how: str) -> None:
    async def says(items: list[Checked]) -> list[str]:
        return [item.said for item in items]

    with anyio.fail_after(HANG_S):
        async with shoal.start(http={"port": 0}) as client:
            await client.create_backend("b", says, config={"placement": "task"})
            await client.create_endpoint("e", backend="b", route="/e", methods=["POST"])
            async with httpx.AsyncClient(base_url=str(client.url)) as http:
                bodies = [{"said": said} for said in ("well", how, "well")]
                answers = [await http.post("/e", json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [200, 500, 200]


@ONE_OF_EACH
@pytest.mark.parametrize("when", ["at first", "later", "at its end"])
async def test_a_placement_that_raises_fails_its_backend_alone(when: str, how: str) -> None:
    made: list[TaskReplica] = []

    class Unstoppable(TaskReplica):
        def stop(self) -> None:
            super().stop()
            answered(how)

        def kill(self, reason: str) -> None:
            super().kill(reason)
            answered(how)

    def placement(blueprint: Blueprint) -> TaskReplica:
        if when == "at first" or (when == "later" and made):
            answered(how)
        made.append((Unstoppable if when == "at its end" else TaskReplica)(blueprint))
        return made[-1]

    async with served(Async, "task") as (controller, _):
        creating = controller.create_backend("c", Async, config={"placement": placement})
        if when == "at first":
            error = await error_of(creating)
            assert isinstance(error, ReplicaNotStarted)
            assert type(RAISES[how]()).__name__ in str(error)
            return
        await creating
        if when == "later":
            assert isinstance(await error_of(controller.scale_backend("c", 2)), ReplicaNotStarted)
        await controller.delete_backend("c", force=True)


IMPORTS = "import signal, sys, threading, time, os, anyio, shoal"

BUSY = """
def busy(items):
    threading.Timer(0.2, os.kill, (os.getpid(), getattr(signal, sys.argv[2]))).start()
    for _ in range(100):
        time.sleep(0.01)
    return items
"""

BUSY_CODE = {
    "itself": """
class Busy:
    async def __call__(self, items: list[int]) -> list[int]:
        return busy(items)
""",
    "a batch that it forms": """
class Busy:
    async def __call__(self, item: int) -> int:
        return await self.inner(item)

    @shoal.batch
    async def inner(self, items: list[int]) -> list[int]:
        return busy(items)
""",
}

SCRIPT = """
async def main():
    async with shoal.start() as client:
        await client.create_backend("b", Busy, config={"placement": "task"})
        await client.create_endpoint("e", backend="b")
        handle = await client.get_handle("e")
        print("begins", flush=True)
        print("answered", await handle.call(1), flush=True)
        await anyio.sleep(5)
        print("went on", flush=True)

def ends(*_):
    sys.exit("by the program")

if sys.argv[2] != "SIGINT":
    signal.signal(signal.SIGTERM, ends)
try:
    anyio.run(main, backend=sys.argv[1])
except BaseException as error:
    found = error
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    print("ended by", type(found).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("where", "signal", "ended_by"),
    [("itself", "SIGINT", "KeyboardInterrupt"), ("a batch that it forms", "SIGTERM", "SystemExit")],
)
async def test_a_signal_ends_the_program_while_a_backend_runs(
    where: str, anyio_backend_name: str, signal: str, ended_by: str
) -> None:
    script = "\n".join([IMPORTS, BUSY, BUSY_CODE[where], SCRIPT])
    command = [sys.executable, "-c", script, anyio_backend_name, signal]
    with anyio.fail_after(HANG_S):
        result = await anyio.run_process(command, check=False)
    lines = result.stdout.decode().splitlines()
    assert "went on" not in lines
    assert lines[-1] == f"ended by {ended_by}", (lines, result.stderr.decode())


@pytest.mark.parametrize("isolates", [False, True])
async def test_a_request_ends_no_more_replicas_than_it_may_run_again(isolates):
    deaths = 0

    class Code:
        async def __call__(self, items: list[Any]) -> list[Any]:
            nonlocal deaths
            if "poison" in items:
                deaths += 1
                if deaths == 4:
                    return items
                self.is_ill = True
                await anyio.sleep_forever()
            return items

        is_ill = False

        def check_health(self) -> None:
            if self.is_ill:
                raise ValueError("ill")

    health = {"health_check_period_s": 0.02, "isolate_errors": isolates}
    async with served(Code, "task", max_batch_size=2, batch_wait_timeout_s=0.05, **health) as (
        _,
        handle,
    ):
        outcomes: dict[Any, Any] = {}

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_end, outcomes, handle, "poison")
            tasks.start_soon(note_end, outcomes, handle, "beside")
        assert isinstance(outcomes["poison"], ReplicaDied)
        if isolates:
            assert outcomes["beside"] == "beside"
        assert deaths == 1 + isolates
