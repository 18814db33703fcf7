"""Handles that code is given by its annotations: no part of its items, and made where it runs."""

from functools import partial
from typing import Annotated

import anyio
import given_code
import pytest

import shoal
from handlers import ask_once
from shoal.errors import NoSuchName
from shoal.testing.asgi import ask

pytestmark = pytest.mark.real_time  # code runs in threads


def application(*codes, **config):
    app = shoal.App()
    for code in (given_code.embed, *codes):
        app.endpoint(f"/{code.__name__}", name=code.__name__, **config)(code)
    return app


@pytest.mark.parametrize(
    ("code", "answer"),
    [(given_code.tenfold, 30), (given_code.hundredfold, 300), (given_code.one_more, 4)],
)
async def test_a_function_is_given_a_handle(code, answer):
    app = application(code)
    response = await ask_once(app, f"/{code.__name__}", "abc")
    assert (response.status, response.json()) == (200, answer)


async def test_a_class_is_given_handles_in_its_constructor_and_its_methods():
    app = application(given_code.tenfold, given_code.Sum)
    async with app.lifespan():
        assert (await ask(app, "/Sum", "abc")).json() == 39
        only = await ask(app, "/Sum", "abc", headers=[("X-Serve-Call-Method", "only")])
        assert only.json() == 30


async def test_a_stream_is_passed_on():
    app = application(given_code.steps, given_code.counted)
    assert b"data: 0\n\ndata: 1\n\nevent: end" in (await ask_once(app, "/counted", 2)).body


async def test_a_given_handle_is_no_part_of_the_item():
    app = application(given_code.tenfold)
    assert (await ask_once(app, "/tenfold", {"text": "abc", "embed": "x"})).status == 422


async def test_arguments_go_before_what_is_given():
    async with shoal.start() as client:
        await client.create_backend("embed", given_code.embed)
        await client.create_endpoint("embed", backend="embed")
        await client.create_endpoint("tenfold", backend="embed")
        other = (await client.get_handle("embed")).options(timeout_s=5)
        await client.create_backend("a", given_code.Sum, other)
        await client.create_backend("b", given_code.Sum, init_kwargs={"embed": other, "factor": 5})
        for name in ("a", "b"):
            await client.create_endpoint(f"sum-{name}", backend=name)
        handles = [await client.get_handle(f"sum-{name}") for name in ("a", "b")]
        assert [await handle.call("abc") for handle in handles] == [12, 18]


class Several:
    def __init__(self, embeds: list[shoal.Handle], other: shoal.Handle | None = None) -> None:
        self.embeds, self.other = embeds, other

    async def __call__(self, text: str) -> int:
        return sum([await embed.call(text) for embed in self.embeds])


async def test_a_constructor_may_be_passed_several_handles():
    async with shoal.start() as client:
        await client.create_backend("embed", given_code.embed)
        await client.create_endpoint("embed", backend="embed")
        handle = await client.get_handle("embed")
        await client.create_backend("several", Several, [handle, handle])
        await client.create_endpoint("several", backend="several")
        assert await (await client.get_handle("several")).call("abc") == 6


async def test_code_by_its_import_path_is_given_handles(app):
    app.backend("embed", "given_code:embed")
    app.backend("tenfold", "given_code:tenfold")
    for name in ("embed", "tenfold"):
        app.route(name, backend=name, path=f"/{name}")
    assert (await ask_once(app, "/tenfold", "abc")).json() == 30


@pytest.mark.parametrize(
    ("code", "answer"), [(given_code.tenfold, 30), (given_code.hundredfold, 300)]
)
async def test_code_in_a_process_is_given_handles(code, answer):
    app = application()
    app.endpoint("/p", placement="process")(code)
    assert (await ask_once(app, "/p", "abc")).json() == answer


async def test_what_it_calls_is_cancelled_with_it():
    app, begun, ended = shoal.App(), anyio.Event(), anyio.Event()

    @app.endpoint("/inner")
    async def inner(item: int) -> int:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    @app.endpoint("/outer")
    async def outer(item: int, inner: shoal.Handle) -> int:
        return await inner.call(item)

    async with app.lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(partial(ask, app, "/outer", 1))
        await begun.wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await ended.wait()


def first(items: list[int], second: shoal.Handle) -> list[int]:
    return [second.sync.call(items[0])]


async def second(items: list[int], first: shoal.Handle) -> list[int]:
    return [await first.call(items[0])]


async def test_a_cycle_ends_with_the_time_limit_of_the_first_call():
    app = shoal.App(answer_timeout_s=0.05)
    for code in (first, second):
        app.endpoint(f"/{code.__name__}")(code)
    async with app.lifespan():
        for path in ("/first", "/second", "/first"):  # nothing is left behind that waits
            assert (await ask(app, path, 1)).status == 504
        ready = (await ask(app, "/-/readyz", method="GET")).json()
    assert ready["status"] == "ready"


async def test_a_name_that_does_not_exist_is_told_at_the_start():
    app = application(given_code.steps)

    @app.endpoint("/wrong")
    async def wrong(text: str, embedd: shoal.Handle) -> int:
        return 0

    with pytest.raises(NoSuchName, match=r"'embedd'.*embed") as raised:
        async with app.lifespan():
            pass
    assert raised.value.__notes__ == ["the parameter 'embedd' of 'wrong' is given its handle"]


async def test_a_wrong_name_in_a_constructor_is_told_at_the_start():
    app = application(given_code.Sum)
    with pytest.raises(NoSuchName, match="'tenfold'"):
        async with app.lifespan():
            pass


@pytest.mark.parametrize(
    "placement", ["thread", pytest.param("process", marks=pytest.mark.one_loop)]
)
async def test_a_call_in_a_constructor_is_told_to_be_too_early(placement):
    app = application()
    app.post("/hasty", placement=placement)(given_code.Hasty)
    with pytest.raises(NoSuchName) as raised:
        async with app.lifespan():
            pass
    assert str(raised.value) == (
        "the endpoint 'embed' is not there yet: endpoints are created once all backends have "
        "started; keep the handle in the constructor, and call it in the methods"
    )


async def numbered(text: str, embed: Annotated[shoal.Handle, 1]) -> int: ...
async def ambiguous(text: str, embed: Annotated[shoal.Handle, "a", "b"]) -> int: ...
async def optional(text: str, embed: shoal.Handle | None = None) -> int: ...
async def several(text: str, embeds: list[shoal.Handle]) -> int: ...
async def named(text: str, embed: Annotated[shoal.Handle, "a"] | None = None) -> int: ...
async def positional(embed: shoal.Handle, /, text: str) -> int: ...


NO_NAME = r'must give one name, as in Annotated\[Handle, "name"\]'
NO_HANDLE = r"'embeds?' of .* must be Handle itself, or Annotated"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (numbered, NO_NAME),
        (ambiguous, NO_NAME),
        (optional, NO_HANDLE),
        (several, NO_HANDLE),
        (named, NO_HANDLE),
        (positional, "can't be given by its name"),
    ],
)
def test_a_wrong_annotation_is_refused(code, says):
    with pytest.raises(TypeError, match=says):
        shoal.App().endpoint("/x")(code)


async def test_outside_of_a_backend_it_can_not_be_used():
    from shoal.serving.clients.handles import DeferredHandle

    with pytest.raises(RuntimeError, match="outside of a replica"):
        await DeferredHandle("embed").call(1)
