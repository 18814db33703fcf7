"""Many items in one request: a line of JSON for each item, and for each result."""

import gzip
import json
from typing import Any

import anyio
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

import shoal
from handlers import ask_once, asking
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling

LINES = ("content-type", "application/x-ndjson")


class Point(BaseModel):
    x: float


class Seen:
    """An application that notes its batches."""

    def __init__(self, **settings: Any) -> None:
        self.batches: list[list[Any]] = []
        self.app = shoal.App(**settings)

    def endpoint(self, path: str, answer: Any, kind: Any = Any, **options: Any) -> None:
        async def handler(items):
            self.batches.append(list(items))
            return [answer(item) for item in items]

        handler.__annotations__ = {"items": list[kind], "return": list[Any]}
        self.app.endpoint(path, name=path[1:], **options)(handler)


@pytest.fixture
def seen() -> Any:
    return Seen()


def body_of(*items: Any) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def lines_of(answer: Any) -> list[Any]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


async def sent(app: Any, path: str, body: bytes, *headers: tuple[str, str]) -> Any:
    return await ask(app, path, body=body, headers=[LINES, *headers])


async def test_the_items_share_a_batch_and_each_line_has_a_result(seen):
    seen.endpoint("/x", lambda item: item * 2, int)
    async with seen.app.lifespan():
        answer = await sent(seen.app, "/x", body_of(3, 1, 2))
    assert answer.status == 200
    assert lines_of(answer) == [{"result": 6}, {"result": 2}, {"result": 4}]
    assert seen.batches == [[3, 1, 2]]


@pytest.mark.parametrize("name", ["application/ndjson", "Application/JSONL; charset=utf-8"])
async def test_other_names_of_the_media_type(name, seen):
    seen.endpoint("/x", str, int)
    answer = await ask_once(seen.app, "/x", body=b"1\n2", headers=[("content-type", name)])
    assert lines_of(answer) == [{"result": "1"}, {"result": "2"}]


async def test_what_is_wrong_with_one_item_fails_it_alone(seen):
    def answer(item):
        if item == 4:
            return ValueError("secret")
        return HTTPException(409, "taken") if item == 5 else item

    seen.endpoint("/x", answer, int)
    async with seen.app.lifespan():
        response = await sent(seen.app, "/x", b'1\n"two"\n{3\n4\n5\n6\n')
    found = lines_of(response)
    assert [found[0], found[-1]] == [{"result": 1}, {"result": 6}]
    problems = [line["error"] for line in found[1:-1]]
    assert [one["status"] for one in problems] == [422, 400, 500, 409]
    assert problems[0]["errors"][0]["type"] == "int_parsing"
    assert {one["instance"] for one in problems} == {response.headers["x-request-id"]}
    assert "secret" not in str(problems)
    assert seen.batches == [[1, 4, 5, 6]]


async def test_lines_may_be_blank_and_end_as_on_windows(seen):
    seen.endpoint("/x", str, int)
    async with seen.app.lifespan():
        answer = await sent(seen.app, "/x", b"\n1\r\n \r\n2\r\n\n3")
        assert lines_of(answer) == [{"result": "1"}, {"result": "2"}, {"result": "3"}]
        blank = await sent(seen.app, "/x", b" \n\n")
        assert (blank.status, blank.json()["type"]) == (422, "urn:shoal:problem:invalid-item")
        assert "no lines" in blank.json()["detail"]
        empty = await sent(seen.app, "/x", b"")
        assert (empty.status, empty.json()["type"]) == (400, "urn:shoal:problem:invalid-json")


async def test_a_problem_of_a_line_names_its_first_errors_only():
    seen = Seen(max_json_elements=1_000_000)
    record = TypedDict("record", {f"field_{nth}": int for nth in range(30)})
    seen.endpoint("/x", str, record)
    async with seen.app.lifespan():
        answer = await sent(seen.app, "/x", b"\n".join([b"{}"] * 4000))
    lines = lines_of(answer)
    assert [len(line["error"]["errors"]) for line in lines] == [4] * 4000
    assert len(answer.body) < 4_000_000


async def test_a_query_is_read_whatever_the_media_type_of_no_body(app):
    @app.endpoint("/x")
    async def lengths(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    answer = await ask_once(app, "/x?texts=eel", method="GET", headers=[LINES])
    assert answer.json() == 3


async def test_items_of_all_types_that_json_has(app):
    @app.endpoint("/array")
    async def array(items: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        return [2 * item for item in items]

    @app.endpoint("/several")
    async def several(names: list[str], counts: list[int] = 2) -> list[str]:  # type: ignore[assignment]
        return [name * count for name, count in zip(names, counts, strict=True)]

    @app.endpoint("/model")
    async def model(items: list[Point]) -> list[Point]:
        return items

    @app.endpoint("/list")
    async def of_lists(items: list[list[int]]) -> list[int]:
        return [sum(item) for item in items]

    cases = {
        "/array": ([[1, 2], [[3]]], [[2, 4], [[6]]]),
        "/several": ([{"names": "a"}, {"names": "b", "counts": 3}], ["aa", "bbb"]),
        "/model": ([{"x": 1}, {"x": 2.5}], [{"x": 1}, {"x": 2.5}]),
        "/list": ([[1, 2], []], [3, 0]),
    }
    async with app.lifespan():
        for path, (items, results) in cases.items():
            found = lines_of(await sent(app, path, body_of(*items)))
            assert found == [{"result": result} for result in results]
        (wrong,) = lines_of(await sent(app, "/several", b'{"names": 1}'))
        assert wrong["error"]["status"] == 422


async def test_a_result_that_has_no_line_fails_its_item_alone(seen):
    seen.endpoint("/x", lambda item: object() if item == 2 else "a\u2028\n", int)
    async with seen.app.lifespan():
        answer = await sent(seen.app, "/x", body_of(1, 2))
    first, second = lines_of(answer)
    assert first == {"result": "a\u2028\n"}
    assert second["error"]["status"] == 500


async def test_what_a_request_may_have_is_limited():
    seen = Seen(max_json_elements=10_000, max_body_bytes=50_000)
    seen.endpoint("/x", lambda _: 0, list[int])
    large = b"[" + b"1," * 3000 + b"1]\n"
    refused = {
        "lines": (b"[]\n" * 4097, "body-too-complex"),
        "elements": (large * 4, "body-too-complex"),
        "bytes": (large * 20, "body-too-large"),
        "coded": (b" " * 60_000, "body-too-large"),
    }
    async with seen.app.lifespan():
        for name, (body, kind) in refused.items():
            coded = [("content-encoding", "gzip")] if name == "coded" else []
            body = gzip.compress(body) if coded else body
            answer = await sent(seen.app, "/x", body, *coded)
            assert (answer.status, answer.json()["type"]) == (413, f"urn:shoal:problem:{kind}")
        assert len(lines_of(await sent(seen.app, "/x", b"[]\n" * 4096))) == 4096
        zipped = gzip.compress(large * 2)
        answer = await sent(seen.app, "/x", zipped, ("content-encoding", "gzip"))
        assert lines_of(answer) == [{"result": 0}] * 2


async def test_more_items_than_the_queue_has_room_for_are_taken_in_turns(seen):
    seen.endpoint("/x", str, int, max_batch_size=4, max_queued_requests=8)
    async with seen.app.lifespan():
        answer = await sent(seen.app, "/x", body_of(*range(30)))
        assert lines_of(answer) == [{"result": str(n)} for n in range(30)]
        assert max(map(len, seen.batches)) == 4


async def test_an_overload_is_one_response(app, held):
    app.endpoint("/x", name="x", max_batch_size=1, max_queued_requests=1)(held)
    async with asking(app, "/x", 0, 0) as [_first, second]:
        await settle()
        answer = await sent(app, "/x", body_of(1, 2))
        assert (answer.status, answer.json()["type"]) == (503, "urn:shoal:problem:overloaded")
        assert "retry-after" in answer.headers
        held.go.set()
        await second.returned.wait()


async def test_the_calls_end_with_their_time_or_their_client(app):
    running = []

    @app.endpoint("/x")
    async def never(items: list[int]) -> list[int]:
        running.append(len(items))
        try:
            await anyio.sleep_forever()
        finally:
            running.append(0)
        return items

    async with app.lifespan():
        answer = await sent(app, "/x", body_of(1, 2), ("x-request-timeout", "5"))
        assert [line["error"]["status"] for line in lines_of(answer)] == [504, 504]
        assert running == [2, 0]
        leaving = Call(app, "/x", body=body_of(1, 2, 3), headers=[LINES])
        async with calling(leaving):
            while running != [2, 0, 3]:
                await anyio.lowlevel.checkpoint()
            leaving.leave()
            await leaving.returned.wait()
        assert running == [2, 0, 3, 0]


async def test_endpoints_that_have_no_json_read_the_body_as_before(app):
    @app.endpoint("/raw")
    async def raw(items: list[bytes]) -> list[bytes]:
        return items

    @app.endpoint("/steps")
    async def steps(items: list[int]) -> Any:
        yield items

    @app.endpoint("/own", decode=lambda request: str(request.headers["content-type"]))
    async def own(items: list[str]) -> list[str]:
        return items

    async with app.lifespan():
        assert (await sent(app, "/raw", b"1\n2\n")).body == b"1\n2\n"
        answer = await sent(app, "/steps", b"1\n2\n")
        assert answer.status == 415
        assert answer.json()["detail"].startswith("This endpoint responds with a stream")
        assert (await sent(app, "/own", b"1\n")).json() == "application/x-ndjson"


async def test_a_shadow_gets_each_item(seen):
    compared = []

    async def copy(items: list[int]) -> list[int]:
        return items

    def compare(one: int, other: int) -> bool:
        compared.append((one, other))
        return True

    seen.endpoint("/x", lambda item: ValueError() if item == 2 else item, int)
    seen.app.backend("copy", copy)
    seen.app.shadow("x", "copy", 1.0, compare=compare)
    async with seen.app.lifespan():
        await sent(seen.app, "/x", body_of(1, 2, 3))
        await settle()
    assert sorted(compared) == [(1, 1), (3, 3)]  # the second one has no result to compare


async def test_others_run_while_many_items_are_read_and_written():
    seen = Seen(max_json_elements=10_000)
    seen.endpoint("/x", str, int, max_batch_size=4096)
    passes = 0

    async def count(scope: anyio.CancelScope) -> None:
        nonlocal passes
        with scope:
            while True:
                await anyio.lowlevel.checkpoint()
                passes += 1

    async with seen.app.lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(count, scope := anyio.CancelScope())
        await sent(seen.app, "/x", b"1\n" * 4096)
        scope.cancel()
    assert passes > 100
