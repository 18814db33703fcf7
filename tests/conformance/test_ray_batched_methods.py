"""What Ray Serve's pages on batching show, code of one item that batches by itself."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import outcomes
from conformance import batched_backends as code
from conformance.replica_scenes import service
from shoal.serving.controller.controller import Controller
from shoal.testing.asgi import ask

pytestmark = pytest.mark.real_time

# Code of each kind forms its batches in a process as well; on which loop is not for it to see.
IN_A_PROCESS = pytest.param("process", marks=pytest.mark.one_loop)
PLACEMENTS = pytest.mark.parametrize("placement", ["task", IN_A_PROCESS])
DOUBLED = [[0, 4], [2, 4], [4, 4], [6, 4]]


@asynccontextmanager
async def controlled(
    target: Any, *args: Any, **config: Any
) -> AsyncGenerator[tuple[Controller, Any]]:
    async with Controller() as controller:
        yield controller, await service(controller, "only", target, *args, **config)


@asynccontextmanager
async def serving(target: Any, *, debug: bool = False, **config: Any) -> AsyncGenerator[shoal.App]:
    """Opens an application that serves a backend at ``/only``."""
    app = shoal.App(debug=debug)
    app.backend("only", target, **config)
    app.route("only", backend="only", path="/only")
    async with app.lifespan():
        yield app


@pytest.mark.parametrize(
    ("target", "placement"),
    [
        (code.CallsBatched, "task"),
        (code.BatchedCall, "task"),
        (f"{code.__name__}:doubled", "task"),
        (code.CallsBatched, "process"),
        pytest.param(f"{code.__name__}:doubled", "process", marks=pytest.mark.one_loop),
    ],
)
async def test_calls_of_one_item_form_batches(target, placement):
    async with controlled(target, placement=placement) as (_, handle):
        assert await outcomes(*map(handle.call, range(4))) == DOUBLED
        assert await outcomes(*map(handle.call, range(4))) == DOUBLED


async def test_an_item_is_prepared_alone_and_run_in_a_batch():
    async with controlled(code.Preprocessing, 10) as (_, handle):
        got = await outcomes(*(handle.call(f" {number} ") for number in range(4)))
    assert got == [{"text": f" {number} ", "scaled": 20 * number, "size": 4} for number in range(4)]


@pytest.mark.parametrize(
    ("target", "placement"),
    [
        (code.Streams, "task"),
        (code.BatchedStream, "task"),
        pytest.param(code.BatchedStream, "process", marks=pytest.mark.one_loop),
    ],
)
async def test_streams_of_one_item_form_batches(target, placement):
    async def read(text: str) -> list[str]:
        async with handle.stream(text) as stream:
            return [letter async for letter in stream]

    async with controlled(target, placement=placement) as (_, handle):
        got = await outcomes(*map(read, ["ab", "c", "de", "f"]))
    assert got == [["a4", "b4"], ["c4"], ["d4", "e4"], ["f4"]]


async def test_a_batched_function_of_the_module_needs_room_for_many_calls():
    async with controlled(code.CallsFunction, max_ongoing_requests=4) as (_, handle):
        assert await outcomes(*map(handle.call, range(4))) == DOUBLED


async def test_a_batched_method_is_called_by_its_name():
    async with controlled(code.CallsBatched) as (_, handle):
        by_name = handle.options(method_name="handle_batch")
        assert await outcomes(*map(by_name.call, range(4))) == DOUBLED


async def test_batches_run_in_the_replica_that_took_their_calls():
    async with controlled(code.Tagged) as (_, handle):
        assert await outcomes(*map(handle.call, range(4))) == [["only#0", 4]] * 4


async def test_an_update_that_replaces_replicas_drops_no_call():
    got: list[Any] = []
    async with controlled(code.Quick) as (controller, handle), anyio.create_task_group() as tasks:

        async def call() -> None:
            got.append(await outcomes(*map(handle.call, range(4))))

        for _ in range(20):
            tasks.start_soon(call)
        await controller.restart_backend("only")
    assert got == [[0, 2, 4, 6]] * 20


@pytest.mark.parametrize("as_endpoint", [False, True])
@pytest.mark.parametrize("target", [code.CallsBatched, code.BatchedCall, code.doubled])
async def test_an_app_serves_them_over_http(target, as_endpoint):
    app = shoal.App()
    if as_endpoint:
        app.endpoint("/only")(target)
    else:
        app.backend("only", target)
        app.route("only", backend="only", path="/only")
    async with app.lifespan():
        answers = await outcomes(*(ask(app, "/only", number) for number in range(4)))
    assert [answer.json() for answer in answers] == DOUBLED


async def test_code_of_an_app_takes_http_requests():
    async with serving(code.TakesRequest) as app:
        answers = await outcomes(
            *(ask(app, f"/only?number={number}", "text") for number in range(4))
        )
    assert [answer.json() for answer in answers] == [
        [2 * number, 4, "POST", '"text"'] for number in range(4)
    ]


@PLACEMENTS
async def test_a_class_has_several_batched_methods(placement):
    app = shoal.App()
    app.endpoint("/only", placement=placement)(code.TwoMethods)
    texts = ["", "abc", "", "abcdef"]  # in quotes
    async with app.lifespan():
        answers = await outcomes(*(ask(app, "/only", text) for text in texts))
        handle = await app.controller.get_handle("TwoMethods")
        embed = handle.options(method_name="embed")
        assert await outcomes(*map(embed.call, texts)) == [[0, 4], [3, 4], [0, 4], [6, 4]]
    expected = [[4, kind, 4] for kind in ("short", "long", "short", "long")]
    assert [answer.json() for answer in answers] == expected


@PLACEMENTS
async def test_the_user_config_sets_the_options_of_its_batches(placement):
    four = {"max_batch_size": 4, "batch_wait_timeout_s": None}
    async with controlled(code.Reconfigured, placement=placement, user_config=four) as (
        controller,
        handle,
    ):
        assert await outcomes(*map(handle.call, range(4))) == DOUBLED
        two = {"user_config": {"max_batch_size": 2, "batch_wait_timeout_s": None}}
        await controller.update_backend_config("only", two)
        assert await outcomes(*map(handle.call, range(4))) == [[2 * n, 2] for n in range(4)]


@PLACEMENTS
async def test_a_response_that_streams_is_sent_or_refused_with_what_to_write(placement):
    app = shoal.App(debug=True)
    app.endpoint("/only", placement=placement)(code.StreamingResponses)
    async with app.lifespan():
        answer = await ask(app, "/only", 1)
    if placement == "task":
        assert (answer.status, answer.body) == (200, b"a")
    else:
        assert answer.status == 500
        said = answer.body.decode()
        assert "a StreamingResponse can't leave its process; write the handler as a gene" in said
        assert "placement='task' or 'thread'" in said


@PLACEMENTS
async def test_a_request_is_whole_wherever_it_is_read(placement):
    async with serving(code.read_request, placement=placement) as app:
        headers = [("x-kind", "herring")]
        answer = await ask(app, "/only?a=1&a=2", {"size": 3}, headers=headers)
    assert answer.json() == ["POST", "/only", ["1", "2"], "herring", {"size": 3}, "127.0.0.1"]


@pytest.mark.one_loop
async def test_what_of_a_request_stays_in_the_server_is_said_in_a_process():
    names = ["app", "state", "session", "user", "auth"]
    async with serving(code.reach, debug=True, placement="process") as app:
        answer = await ask(app, "/only", names)
    said = answer.json()
    assert list(said) == names
    for name in names:
        assert f"request.{name} is in the server's process" in said[name]


async def test_a_program_awaits_a_batched_function_beside_a_client():
    async with shoal.start():
        assert await outcomes(*map(code.doubled, range(4))) == DOUBLED
    with pytest.raises(shoal.errors.NotOpen):
        await code.doubled(1)
