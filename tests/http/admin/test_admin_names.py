"""Every name that comes over the admin API, or out of a state file, is an allowed module's own."""

import collections.abc
import typing
from contextlib import closing
from typing import Any

import anyio
import pytest

from shoal.core.traffic import Shadow
from shoal.errors import NotAllowed
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminMount
from shoal.http.app.app import App
from shoal.serving.backend_options import BackendKeywords
from shoal.serving.controller.controller import Controller
from shoal.serving.imports import ImportRule
from shoal.serving.state_file import StateFile
from shoal.serving.state_records import BackendRecord, EndpointRecord
from shoal.testing.asgi import ask
from time_limits import HANG_S

pytestmark = [pytest.mark.real_time, pytest.mark.one_loop]

HOLDS = "serving.holds_others"
OWN = f"{HOLDS}:own"
CODE = f"{HOLDS}:code"
HEADERS = (("host", "localhost"), ("authorization", "Bearer correct-horse"))


def takes_a_path(hint: Any) -> bool:
    options = typing.get_args(hint)
    origins = {typing.get_origin(option) for option in options}
    return str in options and collections.abc.Callable in origins


FIELDS = [
    name for name, hint in typing.get_type_hints(BackendKeywords).items() if takes_a_path(hint)
]

BESIDE = {
    "pad": {"allowed_batch_sizes": [1, 10]},
    "split": {"batch_size_fn": OWN, "join": OWN},
    "join": {"batch_size_fn": OWN, "split": OWN},
}
"""What an option can't be without."""

FOREIGN = {"policy": "SizeOrWait", "placement": "TaskReplica"}


def config_with(field: str, module: str = HOLDS) -> dict[str, Any]:
    return {field: f"{module}:{FOREIGN.get(field, 'system')}", **BESIDE.get(field, {})}


async def talk(controller: Controller, method: str, path: str, body: Any) -> Any:
    api = AdminApi(controller, token="correct-horse", allowed_modules=[HOLDS])
    return await ask(AdminMount(api), f"/-/api/{path}", body, method=method, headers=HEADERS)


def test_all_options_that_take_a_path_are_known():
    assert [
        *("placement", "decode", "encode", "batch_size_fn", "bucket_by", "pad", "split", "join"),
        *("policy", "dedupe", "open"),
    ] == FIELDS


@pytest.mark.parametrize("field", FIELDS)
async def test_an_option_names_what_is_the_modules_own(field):
    async with Controller() as controller:
        body = {"tag": "b", "definition": CODE, "config": config_with(field)}
        answer = await talk(controller, "POST", "backends", body)
        assert (answer.status, answer.json()["title"]) == (403, "Not allowed"), answer.json()
        assert "is defined in" in answer.json()["detail"]
        assert await controller.list_backends() == {}
        answer = await talk(controller, "POST", "backends", {"tag": "b", "definition": CODE})
        assert answer.status == 200
        before = await controller.get_backend_config("b")
        answer = await talk(controller, "PATCH", "backends/b", config_with(field))
        assert (answer.status, answer.json()["title"]) == (403, "Not allowed"), answer.json()
        assert await controller.get_backend_config("b") == before


async def test_code_is_the_modules_own():
    async with Controller() as controller:
        body = {"tag": "b", "definition": f"{HOLDS}:system"}
        answer = await talk(controller, "POST", "backends", body)
        assert answer.status in (403, 422)
        assert "is defined in" in answer.json()["detail"]
        assert await controller.list_backends() == {}


async def test_a_comparison_is_the_modules_own():
    async with Controller() as controller:
        await controller.create_backend("b", CODE)
        await controller.create_backend("c", CODE)
        await controller.create_endpoint("e", backend="b")
        for compare, status in (("os:system", 403), (f"{HOLDS}:system", 403), (OWN, 200)):
            shadow = {"proportion": 1, "compare": compare}
            answer = await talk(controller, "PUT", "endpoints/e/shadows/c", shadow)
            assert answer.status == status
            assert status == 200 or answer.json()["title"] == "Not allowed"


async def test_what_is_the_modules_own_is_taken_and_kept(tmp_path):
    config = {"bucket_by": OWN, "batch_size_fn": OWN}
    with closing(StateFile.open(tmp_path / "state.db")) as state:
        async with Controller(state) as controller:
            body = {"tag": "b", "definition": CODE, "config": config}
            assert (await talk(controller, "POST", "backends", body)).status == 200
            assert (await talk(controller, "GET", "backends/b", ...)).json() == config
    with closing(StateFile.open(tmp_path / "state.db")) as state:
        async with Controller(state, ImportRule([HOLDS])) as controller:
            assert (await controller.get_backend_config("b")).given() == config


def written(path: Any, *changes: Any) -> StateFile:
    with closing(StateFile.open(path)) as state:
        state.apply(*changes)
    return StateFile.open(path)


async def failure_of(controller: Controller, tag: str) -> str:
    status = controller.status_now
    with anyio.fail_after(HANG_S):
        while (found := status().backends[tag].failure) is None:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return found


@pytest.mark.parametrize("field", FIELDS)
async def test_an_option_out_of_a_state_file_is_of_an_allowed_module(field, tmp_path):
    declared = BackendRecord(tag="b", import_path=CODE, config=config_with(field, "os"))
    with closing(written(tmp_path / "state.db", declared)) as state:
        async with Controller(state, ImportRule([HOLDS])) as controller:
            assert "'os" in await failure_of(controller, "b")
            replicas = controller.status_now().backends["b"].replicas
            assert "ready" not in {replica.state for replica in replicas}


@pytest.mark.parametrize("field", FIELDS)
async def test_an_option_out_of_a_state_file_names_what_is_the_modules_own(field, tmp_path):
    declared = BackendRecord(tag="b", import_path=CODE, config=config_with(field))
    endpoint = EndpointRecord(name="e", traffic={"b": 1})
    with closing(written(tmp_path / "state.db", declared, endpoint)) as state:
        async with Controller(state, ImportRule([HOLDS])) as controller:
            if field == "placement":
                assert "is defined in" in await failure_of(controller, "b")
                return
            with pytest.raises(NotAllowed, match="is defined in"):
                await (await controller.get_handle("e")).call(1)


@pytest.mark.parametrize(
    "declared",
    [
        BackendRecord(tag="b", import_path="os:system"),
        BackendRecord(tag="b", import_path=f"{HOLDS}:system"),
        BackendRecord(
            tag="b",
            import_path=CODE,
            config={"placement": "process", "env": {"LD_PRELOAD": "/tmp/evil.so"}},
        ),
    ],
)
async def test_code_out_of_a_state_file_is_an_allowed_modules_own(declared, tmp_path):
    with closing(written(tmp_path / "state.db", declared)) as state:
        async with Controller(state, ImportRule([HOLDS])) as controller:
            assert await failure_of(controller, "b")


async def test_a_comparison_out_of_a_state_file_is_an_allowed_modules_own(tmp_path):
    shadows = {
        "c": Shadow(1, compare="os:system"),
        "d": Shadow(1, compare=f"{HOLDS}:system"),
        "f": Shadow(1, compare=OWN),
    }
    changes = [BackendRecord(tag=tag, import_path=CODE) for tag in "bcdf"]
    endpoint = EndpointRecord(name="e", traffic={"b": 1}, shadows=shadows)
    with closing(written(tmp_path / "state.db", *changes, endpoint)) as state:
        async with Controller(state, ImportRule([HOLDS])) as controller:
            flows = controller.endpoints["e"].shadows
            compares = {tag: flow._are_alike is not None for tag, flow in flows.items()}
            assert compares == {"c": False, "d": False, "f": True}


async def test_what_a_program_declares_itself_needs_no_leave(tmp_path):
    def made() -> App:
        app = App()
        app.backend("b", CODE, bucket_by=OWN)
        app.backend("c", CODE)
        app.route("e", backend="b", path="/e")
        app.shadow("e", "c", 1, compare=OWN)
        app.allowed_modules = []
        return app

    for _ in range(2):
        app = made()
        with closing(StateFile.open(tmp_path / "state.db")) as state:
            app.state = state
            async with app.lifespan():
                assert (await ask(app, "/e", 1)).json() == 1
                assert app.controller.endpoints["e"].shadows["c"]._are_alike
