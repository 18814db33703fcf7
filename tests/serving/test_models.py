"""Many models in one backend: batches of one model each, on replicas that have it loaded."""

import logging
from typing import Any, ClassVar

import anyio
import pytest

import shoal
from batching.callers import outcome, outcomes, read
from serving.scenes import serving, serving_tasks, under_way
from shoal.errors import HandlerTimeout, NoSuchModel, NoSuchName, ReplicaDied
from shoal.serving.controller.endpoints import EndpointHandle
from shoal.testing.asgi import ask


class Models:
    """Code with models and a log of all replicas; a test says how long they load, what raises."""

    log: list[str]
    load_s = 0.0
    fails: Any = None

    def __init__(self) -> None:
        self.here: set[str] = set()

    async def load_model(self, model: str) -> None:
        self.log.append(f"load {model}")
        await anyio.sleep(self.load_s)
        if self.fails is not None:
            raise self.fails
        assert shoal.current_model() == model
        self.here.add(model)

    async def unload_model(self, model: str) -> None:
        self.log.append(f"unload {model}")
        self.here.remove(model)

    async def __call__(self, items: list[int]) -> list[Any]:
        model = shoal.current_model()
        assert model is None or model in self.here
        self.log.append(f"{model}: {items}")
        await anyio.sleep(1)
        return [(model, item) for item in items]


def code(load_s: float = 0.0, fails: Any = None) -> type[Models]:
    return type("Code", (Models,), {"log": [], "load_s": load_s, "fails": fails})


@pytest.fixture
def made() -> Any:
    return code()


def of(handle: EndpointHandle, model: str, item: int = 0) -> Any:
    return handle.options(model=model).call(item)


async def test_a_batch_has_requests_of_one_model(made: Any) -> None:
    async with serving(made, models={"most": 2}, batch_wait_timeout_s=1) as (_, handle, _stage):
        calls = [of(handle, "ab"[item % 2], item) for item in range(4)]
        assert await outcomes(*calls) == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    assert len(made.log) == 4


async def test_the_model_that_was_used_least_recently_is_unloaded(made: Any) -> None:
    async with serving(made, models={"most": 2}) as (_, handle, _):
        for model in "abacb":
            await of(handle, model)
    loads = [line for line in made.log if "load" in line]
    assert loads == ["load a", "load b", "unload b", "load c", "unload a", "load b"]


async def test_a_replica_that_has_the_model_is_preferred(made: Any) -> None:
    async with serving(made, models={"most": 1}, num_replicas=2) as (_, handle, stage):
        for model in "abababab":
            await of(handle, model)
        assert [number for number, items in stage.calls if items == [0]] == [0, 1] * 4
    assert made.log.count("load a") == made.log.count("load b") == 1


async def test_a_load_is_one_flight() -> None:
    made = code(load_s=5)
    config: Any = {"models": {"most": 1}, "max_concurrent_batches": 3, "max_batch_size": 1}
    async with serving(made, **config) as (_, handle, _):
        await outcomes(*[of(handle, "a", item) for item in range(3)])
        assert anyio.current_time() == pytest.approx(6)
    assert made.log.count("load a") == 1


async def test_a_load_goes_on_without_its_callers() -> None:
    made = code(load_s=5)
    async with serving_tasks(made, models={"most": 1}) as (_, handle, _, tasks):
        (caller,) = await under_way(tasks, of(handle, "a"))
        caller.leave()
        await anyio.sleep(6)
        began_at = anyio.current_time()
        assert await of(handle, "a") == ("a", 0)
        assert anyio.current_time() - began_at == pytest.approx(1)
    assert made.log.count("load a") == 1


async def test_a_model_in_use_is_not_unloaded(made: Any) -> None:
    config: Any = {"models": {"most": 1, "max_switch_wait_s": 0}, "max_concurrent_batches": 2}
    async with serving_tasks(made, **config) as (_, handle, _, tasks):
        (first,) = await under_way(tasks, of(handle, "a"))
        (second,) = await under_way(tasks, of(handle, "b"))
        await anyio.sleep(0.9)
        assert made.log == ["load a", "a: [0]"]
        await anyio.sleep(1.5)
        assert (first.outcome, second.outcome) == (("a", 0), ("b", 0))
    assert made.log == ["load a", "a: [0]", "unload a", "load b", "b: [0]"]


async def test_a_model_that_is_wanted_goes_first_but_no_longer_than_the_cap(made: Any) -> None:
    config: Any = {"models": {"most": 1, "max_switch_wait_s": 4.5}, "max_batch_size": 1}
    async with serving_tasks(made, **config) as (_, handle, _, tasks):
        await under_way(tasks, of(handle, "a", 0))
        await under_way(tasks, of(handle, "b", 0))
        await under_way(tasks, *[of(handle, "a", item) for item in range(1, 20)])
        await anyio.sleep(30)
    # Each second one batch of the model that is loaded, and the first of b after 4.5 s at most.
    switch = made.log.index("unload a")
    assert made.log[1:switch] == [f"a: [{item}]" for item in range(5)]
    assert len([line for line in made.log if ": " in line]) == 21


async def test_a_busy_replica_with_the_model_is_waited_for_up_to_the_cap(made: Any) -> None:
    config: Any = {"models": {"most": 1, "max_switch_wait_s": 0.5}, "num_replicas": 2}
    async with serving_tasks(made, **config) as (_, handle, stage, tasks):
        await under_way(tasks, of(handle, "a", 1))
        await under_way(tasks, of(handle, "a", 2))
        assert [items for _, items in stage.calls] == [["a"], [1]]
        await anyio.sleep(0.6)
        assert [items for _, items in stage.calls] == [["a"], [1], ["a"], [2]]


async def test_a_load_that_raises_fails_its_requests_and_the_next_one_tries_again() -> None:
    made = code(fails=RuntimeError("no luck"))
    async with serving(made, models={"most": 1}) as (_, handle, _):
        results = await outcomes(of(handle, "a", 1), of(handle, "b", 2))
        assert [str(result) for result in results] == ["no luck", "no luck"]
        made.fails = None
        assert await of(handle, "a", 3) == ("a", 3)


async def test_a_load_that_hangs_fails_after_its_limit() -> None:
    made = code(load_s=1e6)
    async with serving(made, models={"most": 1, "load_timeout_s": 7}) as (_, handle, _):
        error = await outcome(of(handle, "a"))
        assert isinstance(error, HandlerTimeout)
        assert anyio.current_time() == pytest.approx(7)
        made.load_s = 0
        assert await of(handle, "a") == ("a", 0)


async def test_an_unload_that_raises_is_logged_and_the_load_goes_on(caplog):
    made = code()

    async def raises(_self: Any, _model: str) -> None:
        raise RuntimeError("stuck")

    made.unload_model = raises  # type: ignore[method-assign]
    async with serving(made, models={"most": 1}) as (_, handle, _):
        assert await of(handle, "a") == ("a", 0)
        with caplog.at_level(logging.WARNING, "shoal.serving"):
            assert await of(handle, "b") == ("b", 0)
    assert "unload_model('a') raised" in caplog.text


async def test_the_death_of_a_replica_ends_a_load_and_the_batch_runs_again_elsewhere() -> None:
    made = code(load_s=5)
    config: Any = {"models": {"most": 1}, "num_replicas": 2, "retries": 1}
    async with serving_tasks(made, **config) as (_, handle, stage, tasks):
        (caller,) = await under_way(tasks, of(handle, "a"))
        stage.replicas[stage.calls[0][0]].die()
        await anyio.sleep(10)
        assert caller.outcome == ("a", 0)
        first, second, _ = [number for number, _ in stage.calls]
        assert first != second


async def test_the_death_of_a_replica_fails_what_waits_for_its_load() -> None:
    made = code(load_s=5)
    async with serving_tasks(made, models={"most": 1}) as (_, handle, stage, tasks):
        (caller,) = await under_way(tasks, of(handle, "a"))
        await stage.lose()
        assert isinstance(caller.outcome, ReplicaDied)


async def test_a_name_that_is_not_listed_is_refused_and_unloads_nothing(made: Any) -> None:
    async with serving(made, models={"most": 1, "names": ["a", "b"]}) as (controller, handle, _):
        await of(handle, "a")
        for name in ("made up", ""):
            with pytest.raises(NoSuchModel, match=f"b has no model '{name}'"):
                await of(handle, name)
        assert await handle.call(0) == (None, 0)
        await of(handle, "a")
        assert [line for line in made.log if "load" in line] == ["load a"]
        await controller.update_backend_config("b", {"models": {"most": 1, "names": ["c"]}})
        assert await of(handle, "c") == ("c", 0)
        with pytest.raises(NoSuchModel):
            await of(handle, "a")


async def test_a_model_that_does_not_exist_is_a_404() -> None:
    app = shoal.App()
    app.backend("listed", code(), models={"most": 1, "names": ["a"]})
    app.backend("loads", code(fails=NoSuchModel("it has no weights")), models={"most": 1})
    app.route("listed", backend="listed", path="/listed")
    app.route("loads", backend="loads", path="/loads")
    async with app.lifespan():
        for path in ("/listed", "/loads"):
            refused = await ask(app, path, 1, headers=[("X-Model", "b")])
            assert refused.status == 404
            assert refused.json()["type"] == "urn:shoal:problem:no-such-model"
            assert "weights" not in refused.body.decode()
        assert (await ask(app, "/listed", 1, headers=[("X-Model", "a")])).json() == ["a", 1]


async def test_a_model_is_loaded_again_only_once_it_is_unloaded() -> None:
    class Reluctant(Models):
        log: ClassVar[list[str]] = []

        async def unload_model(self, model: str) -> None:
            await anyio.sleep(5 if model == "a" else 0)
            await super().unload_model(model)

    config: Any = {"models": {"most": 2, "max_switch_wait_s": 0}, "max_concurrent_batches": 2}
    async with serving_tasks(Reluctant, **config) as (_, handle, _, tasks):
        await of(handle, "a")
        await of(handle, "c")
        callers = await under_way(tasks, of(handle, "b"), of(handle, "a"))
        await anyio.sleep(7)
        assert [caller.outcome for caller in callers] == [("b", 0), ("a", 0)]
        assert await of(handle, "a") == ("a", 0)
    assert Reluctant.log.index("unload a") < Reluctant.log.index("load a", 1)


async def test_streams_load_their_model_as_well() -> None:
    class Code(Models):
        log: ClassVar[list[str]] = []

        async def steps(self, items: list[int]) -> Any:
            assert shoal.current_model() in self.here
            yield items

    async with serving(Code, models={"most": 1}) as (_, handle, _):
        assert await read(handle.options(method_name="steps", model="a").stream(1)) == [1]
    assert Code.log == ["load a"]


async def test_loading_shows_in_the_status_and_in_the_metrics() -> None:
    made = code(load_s=5)
    app = shoal.App()
    app.backend("b", made, models={"most": 1})
    app.route("e", backend="b", path="/e")

    async def figures() -> dict[str, float]:
        text = (await ask(app, "/-/metrics", method="GET")).body.decode()
        lines = [line.partition(" ") for line in text.splitlines() if "model" in line]
        return {name: float(value) for name, _, value in lines if name[0] != "#"}

    async with app.lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(_ask_for_model, app, "a")
        await anyio.sleep(1)
        (replica,) = app.controller.status_now().backends["b"].replicas
        assert replica.models == {"a": "loading"}
        assert (await figures())['shoal_replica_loading_models{backend="b",replica="b#0"}'] == 1
        await anyio.sleep(5)
        (replica,) = app.controller.status_now().backends["b"].replicas
        assert replica.models == {"a": "loaded"}
        found = await figures()
        assert found['shoal_model_loads_total{backend="b"}'] == 1
        assert found['shoal_model_load_seconds_total{backend="b"}'] == pytest.approx(5)


async def _ask_for_model(app: shoal.App, model: str) -> None:
    await ask(app, "/e", 1, headers=[("X-Model", model)])


async def test_equal_calls_for_other_models_share_nothing(made: Any) -> None:
    config: Any = {"models": {"most": 2}, "cache": {"max_size": 10, "ttl_s": 100}}
    async with serving(made, **config) as (_, handle, _):
        assert [await of(handle, model) for model in "abab"] == [("a", 0), ("b", 0)] * 2
    assert len(made.log) == 4


async def test_equal_keys_for_other_models_share_nothing(made: Any) -> None:
    config: Any = {"models": {"most": 2}, "dedupe": abs}
    async with serving(made, **config) as (_, handle, _):
        assert await outcomes(of(handle, "a"), of(handle, "b")) == [("a", 0), ("b", 0)]


async def test_a_field_of_the_item_names_the_model() -> None:
    class Code(Models):
        log: ClassVar[list[str]] = []

        async def __call__(self, items: list[Any]) -> list[Any]:
            assert shoal.current_model() in self.here
            return [shoal.current_model() for _ in items]

    async with serving(Code, models={"most": 3, "field": "model"}) as (_, handle, _):
        assert await handle.call({"model": "a"}) == "a"
        assert await handle.call(Named("b")) == "b"
        assert await handle.options(model="c").call({"model": "a"}) == "c"
        with pytest.raises(TypeError, match="the model for b must be text, not 7"):
            await handle.call({"model": 7})


class Named:
    def __init__(self, model: str) -> None:
        self.model = model


async def test_a_request_without_a_model_loads_none(made: Any) -> None:
    async with serving(made, models={"most": 1}) as (_, handle, _):
        assert await handle.call(1) == (None, 1)
    assert made.log == ["None: [1]"]


async def test_nobody_else_may_load_and_unload() -> None:
    async with serving(code(), models={"most": 1}) as (_, handle, _):
        for method in ("load_model", "unload_model"):
            with pytest.raises(NoSuchName, match="is called by the server only"):
                await handle.options(method_name=method).call("a")


async def test_the_option_changes_while_the_backend_runs(made: Any) -> None:
    async with serving(made, models={"most": 1}) as (controller, handle, _):
        for model in "abab":
            await of(handle, model)
        assert len([line for line in made.log if line.startswith("load")]) == 4
        await controller.update_backend_config("b", {"models": {"most": 2}})
        for model in "abab":
            await of(handle, model)
        assert len([line for line in made.log if line.startswith("load")]) == 5
        await controller.update_backend_config("b", {"models": None})
        assert await handle.call(1) == (None, 1)


async def test_the_header_names_the_model_over_http() -> None:
    app = shoal.App()
    app.backend("b", code(), models={"most": 1})
    app.route("e", backend="b", path="/e")
    async with app.lifespan():
        answer = await ask(app, "/e", 1, headers=[("X-Model", "fr-en")])
        assert answer.json() == ["fr-en", 1]
        refused = await ask(app, "/e", "a", headers=[("X-Serve-Call-Method", "load_model")])
        assert refused.status == 404


def test_a_batcher_without_replicas_refuses_it() -> None:
    with pytest.raises(ValueError, match=r"models=Models\(.*\) is for backends"):
        shoal.Batcher(code()(), models=shoal.Models(most=2))


@pytest.mark.parametrize(
    "given", [{"most": 0}, {"most": 1, "load_timeout_s": -1}, {"most": 1, "max_switch_wait_s": -1}]
)
def test_values_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        shoal.BackendConfig(models=given)


def test_names_are_a_list_of_text() -> None:
    wrong: Any
    for wrong in ("a", [], [1], 7):
        with pytest.raises(TypeError, match="names must be names of models, such as"):
            shoal.Models(names=wrong)
    stored = shoal.BackendConfig(models={"names": ["a"]}).durable()
    assert shoal.BackendConfig.of(stored).batching["models"].names == ("a",)


async def test_a_model_is_not_wanted_any_more_after_a_batch_that_came_back(made: Any) -> None:
    class Refusing(made):
        tries = 0

        async def __call__(self, items: list[int]) -> list[Any]:
            Refusing.tries += 1
            if Refusing.tries == 1:
                raise shoal.RetryLater(1)
            return await super().__call__(items)

    models = {"most": 1, "max_switch_wait_s": 30}
    async with serving(Refusing, models=models) as (_, handle, _):
        await of(handle, "a")
        began = anyio.current_time()
        await of(handle, "b")
        assert anyio.current_time() - began == 1
