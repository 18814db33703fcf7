"""Errors as answers: the one mapping, and what is kept from clients, in each protocol."""

import json
import logging
import traceback
from typing import Any

import anyio
import pytest
from openai_app import COMPLETIONS, events
from starlette.exceptions import HTTPException

import shoal
from handlers import ask_once, ask_together
from shoal.asgi.http_options import HttpOptions
from shoal.http.requests.problem import Problem, Refused, problem_of
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling
from socket_in_memory import opened


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (shoal.errors.Overloaded("x"), 503, "overloaded"),
        (shoal.errors.BatcherClosed("x"), 503, "closed"),
        (shoal.errors.DeadlineExceeded("x"), 504, "deadline-exceeded"),
        (shoal.errors.HandlerTimeout("x"), 504, "handler-timeout"),
        (shoal.errors.SlowReader("x"), 408, "slow-reader"),
        (shoal.errors.WrongBatchSize("x", expected=1, got=2), 500, "internal"),
        (shoal.errors.WrongResultType("x"), 500, "internal"),
        (shoal.errors.HandlerFailed("x"), 500, "internal"),
        (shoal.errors.NotOpen("x"), 500, "internal"),
        (TimeoutError("x"), 500, "internal"),
        (ValueError("x"), 500, "internal"),
        (HTTPException(418, "short and stout"), 418, ""),
        (HTTPException(200), 500, "internal"),
        (HTTPException(1000, "no status at all"), 500, "internal"),
    ],
)
def test_each_error_has_its_status(error, status, kind):
    found = problem_of(error, HttpOptions())
    assert (found.status, found.kind) == (status, kind)
    assert found.detail != "x"


def test_a_call_that_a_shutdown_cut_is_not_told_that_no_calls_are_accepted():
    found = problem_of(shoal.errors.ShutDown("the server ends"), HttpOptions(retry_after_s=9))
    assert (found.kind, found.title) == ("closed", "The server has stopped")
    assert found.detail == "It stopped before the call had ended. The call may be retried."
    assert dict(found.headers)[b"retry-after"] == b"9"


def test_a_problem_that_says_when_to_retry_is_sent_as_it_is():
    problem = Problem(503, "busy", "The model is busy", headers=((b"retry-after", b"7"),))
    assert problem_of(Refused(problem), HttpOptions(retry_after_s=9)) is problem


@pytest.mark.parametrize("error", [shoal.errors.Overloaded("x"), shoal.errors.BatcherClosed("x")])
def test_who_may_come_again_is_told_when(error):
    found = problem_of(error, HttpOptions(retry_after_s=9))
    assert dict(found.headers)[b"retry-after"] == b"9"


def test_the_members_are_those_of_rfc_9457():
    members = problem_of(shoal.errors.DeadlineExceeded("x"), HttpOptions()).members("id-1")
    assert members == {
        "type": "urn:shoal:problem:deadline-exceeded",
        "title": "The call was not answered in time",
        "status": 504,
        "instance": "id-1",
    }


def failing(error):
    async def handler(items: list[int]) -> list[int]:
        raise error

    return handler


async def test_an_http_exception_keeps_its_status_its_detail_and_its_headers(app):
    error = HTTPException(402, "pay first", {"X-Price": "3", "x-odd": "\u20ac"})
    app.endpoint("/x")(failing(error))
    answer = await ask_once(app, "/x", 1)
    assert (answer.status, answer.headers["x-price"]) == (402, "3")
    assert answer.json() == {
        "type": "about:blank",
        "title": "Payment Required",
        "status": 402,
        "detail": "pay first",
        "instance": answer.headers["x-request-id"],
    }


async def test_an_http_exception_in_a_slot_is_its_callers_alone(app):
    async def handler(items: list[int]) -> list[object]:
        return [HTTPException(404) if item else "fine" for item in items]

    app.endpoint("/x", max_batch_size=2, batch_wait_timeout_s=1)(handler)
    bad, good = await ask_together(app, "/x", 1, 0)
    assert (bad.status, good.status) == (404, 200)
    assert "detail" not in bad.answer.json()


@pytest.mark.parametrize("debug", [False, True])
async def test_internals_are_shown_in_debug_mode_alone(debug):
    app = shoal.App(debug=debug)
    app.endpoint("/x")(failing(ValueError("a secret")))
    answer = await ask_once(app, "/x", 1)
    assert answer.status == 500
    assert (b"a secret" in answer.body) is debug
    assert ("traceback" in answer.json()) is debug


async def test_a_batch_that_fails_is_logged_once_with_the_ids_of_its_requests(caplog, app):
    app.endpoint("/x", name="x", max_batch_size=3, batch_wait_timeout_s=1)(failing(ValueError()))
    calls = await ask_together(app, "/x", 0, 1, 2)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("x: batch 1 failed: ValueError, 3 of 3 requests (")
    # The frames of the handler, without those of Shoal that called it.
    frames = traceback.extract_tb(record.exc_info[2])
    assert [frame.filename for frame in frames] == [failing.__code__.co_filename]
    assert [call.status for call in calls] == [500] * 3
    assert sorted(record.request_ids) == sorted(call.headers["x-request-id"] for call in calls)
    assert (record.backend, record.size, record.failed, record.error) == ("x", 3, 3, "ValueError")


def lines(caplog):
    """What was logged of failures, and how many tracebacks were."""
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [one.getMessage() for one in told], sum(one.exc_info is not None for one in told)


async def answered(app, path, items):
    """Makes calls whose ids are those of their items, at once; returns the statuses."""
    ids = [[("x-request-id", f"r{item}")] for item in items]
    calls = [Call(app, path, item=i, headers=h) for i, h in zip(items, ids, strict=True)]
    async with calling(*calls):
        for call in calls:
            await call.returned.wait()
    return [call.status for call in calls]


@pytest.mark.parametrize("items", [[0, 5, 1], [5, 0, 1]])
@pytest.mark.parametrize(
    ("chosen", "status"), [(HTTPException(404), 404), (shoal.errors.ItemTooLarge("x"), 413)]
)
async def test_the_line_names_requests_whose_answer_code_did_not_choose(
    caplog, items, chosen, status, app
):
    @app.endpoint("/x", name="x", max_batch_size=3, batch_wait_timeout_s=1)
    async def some(items: list[int]) -> list[int]:
        return [{0: chosen, 5: ValueError("no")}.get(i, i) for i in items]

    async with app.lifespan():
        statuses = await answered(app, "/x", items)
    assert sorted(statuses) == [200, status, 500]
    assert lines(caplog) == (["x: batch 1 failed: ValueError, 1 of 3 requests (r5)"], 1)


async def test_an_open_batch_that_fails_in_part_is_one_line_with_its_ids(caplog, app):
    @app.endpoint("/x", name="x", fill="open", max_batch_size=3)
    async def some(batch: shoal.OpenBatch[int, int]) -> None:
        async for request in batch:
            await anyio.sleep(1)
            if request.item:
                request.fail(ValueError("no"))
            else:
                request.finish(0)

    async with app.lifespan():
        assert sorted(await answered(app, "/x", [1, 0, 2])) == [200, 500, 500]
    messages, tracebacks = lines(caplog)
    assert len(messages) == tracebacks == 1
    assert messages[0].startswith("x: batch 1 failed: ValueError, 2 of 3 requests (r")
    assert {"r1", "r2"} == set(messages[0].split("(")[1].strip(")").split(", "))


async def test_failures_of_a_continuous_batch_are_logged_when_they_happen(caplog, app):
    @app.endpoint("/x", name="x", fill="continuous", max_batch_size=4)
    async def some(batch: shoal.OpenBatch[int, int]) -> None:
        async for _ in batch.steps():
            await anyio.sleep(1)
            for request in batch.active:
                if request.item >= 9:
                    if len(batch.active) == 2:
                        raise LookupError("all")
                elif request.item:
                    request.fail(ValueError("no"))
                else:
                    request.finish(0)

    async with app.lifespan():
        assert sorted(await answered(app, "/x", [1, 0, 2])) == [200, 500, 500]
        await settle()
        (message,), tracebacks = lines(caplog)
        assert message.startswith("x: batch 1 failed: ValueError, 2 of 3 requests (r")
        assert tracebacks == 1
        caplog.clear()
        handle = await app.controller.get_handle("x")
        with pytest.raises(ValueError, match="no"):
            await handle.call(3)
        await settle()
        assert lines(caplog)[0] == ["x: batch 1 failed: ValueError, 1 of 4 requests (-)"]
        caplog.clear()
        assert await answered(app, "/x", [9, 10]) == [500, 500]
        await settle()
        (message,), tracebacks = lines(caplog)
        assert message.startswith("x: batch 1 failed: LookupError, 2 of 6 requests (r")
        assert tracebacks == 1
        caplog.clear()
    assert lines(caplog)[0] == []


async def test_a_batch_that_runs_for_too_long_is_logged_without_a_traceback(caplog, app):
    async def slow(items: list[int]) -> list[int]:
        await anyio.sleep(100)
        return items

    app.endpoint("/x", name="x", handler_timeout_s=2)(slow)
    async with app.lifespan():
        handle = await app.controller.get_handle("x")
        with pytest.raises(shoal.errors.HandlerTimeout):
            await handle.call(1)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "x: batch 1 failed: HandlerTimeout, 1 of 1 requests (-)"
    assert record.exc_info is None


async def test_what_a_handler_returned_is_not_logged(caplog, app):
    async def wrong(items: list[int]) -> list[int]:
        return "secret"  # type: ignore[return-value]

    app.endpoint("/x", name="x")(wrong)
    assert (await ask_once(app, "/x", 1)).status == 500
    assert "must give back a list of 1 results, not str" in caplog.text
    assert "secret" not in caplog.text


async def test_what_is_the_clients_own_is_not_logged(caplog, app):
    app.endpoint("/x")(failing(HTTPException(503)))
    async with app.lifespan():
        assert (await ask(app, "/x", "no number")).status == 422
        assert (await ask(app, "/y", 1)).status == 404
        assert (await ask(app, "/x", 1)).status == 503
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class Unwilling(Exception):
    """Lets nothing be put on it, and shows nothing of itself."""

    def __setattr__(self, name, value):
        raise TypeError("nothing may be set")

    def __str__(self):
        raise TypeError("nothing to show")


async def test_an_error_that_takes_no_attribute_is_answered_like_any_other(caplog, app):
    app.endpoint("/", name="one")(failing(Unwilling()))
    answer = await ask_once(app, "/", item=1)
    assert answer.status == 500
    assert len([r for r in caplog.records if r.exc_info]) == 1


# What the cause would be seen by, in lower case: its text, its type, and where it was raised.
OF_CAUSE = ["sesame", "unheard", "raise ", "test_problem", "traceback"]


class Unheard(Exception):
    """An error that only this file has."""


@pytest.fixture(params=[False, True], ids=["plain", "debug"])
def debug(request):
    return request.param


@pytest.fixture
async def broken(debug):
    """An application whose code fails, at once or after one piece."""
    app = shoal.App(protocols=["openai", "oip"], debug=debug)

    @app.endpoint("/fails", name="fails")
    async def fails(prompts: list[str]) -> list[str]:
        raise Unheard("open sesame")

    @app.endpoint("/vector", name="vector")
    async def vector(texts: list[str]) -> list[list[float]]:
        raise Unheard("open sesame")

    @app.endpoint("/ends", name="ends")
    async def ends(prompts: list[str]):
        if prompts:
            raise Unheard("open sesame")
        yield prompts

    @app.endpoint("/breaks", name="breaks")
    async def breaks(prompts: list[str]):
        yield ["one "] * len(prompts)
        raise Unheard("open sesame")

    async with app.lifespan():
        yield app


OPENAI = {
    f"{model}{''.join(f', {name}' for name in more)}": (
        "/v1/chat/completions" if "messages" in more else COMPLETIONS,
        {"model": model, **({} if "messages" in more else {"prompt": "a"}), **more},
    )
    for model in ("fails", "ends", "breaks")
    for more in (
        {},
        {"n": 2},
        {"stream": True},
        {"n": 2, "stream": True},
        {"messages": [{"role": "user", "content": "a"}]},
    )
} | {
    "embedding": ("/v1/embeddings", {"model": "vector", "input": "a"}),
    "embeddings": ("/v1/embeddings", {"model": "vector", "input": ["a", "b"]}),
}


def shown(*seen: Any) -> list[str]:
    """The parts of the cause that are in what a caller has got."""
    text = json.dumps(seen).lower()
    return [part for part in OF_CAUSE if part in text]


@pytest.mark.one_loop
@pytest.mark.parametrize(("path", "asked"), OPENAI.values(), ids=OPENAI)
async def test_the_cause_is_shown_by_openai_in_debug_mode_alone(broken, path, asked, debug, caplog):
    answer = await ask(broken, path, asked)
    if asked["model"] == "breaks" and "stream" in asked:
        assert answer.status == 200
        error = events(answer.body)[-1]["error"]
    else:
        assert answer.status == 500
        error = answer.json()["error"]
    assert error["type"] == "server_error"
    assert error["message"].startswith("The call failed")
    assert shown(error.get("traceback")) == (OF_CAUSE if debug else [])
    assert shown(answer.headers, answer.body.decode()) == (OF_CAUSE if debug else [])


@pytest.mark.one_loop
@pytest.mark.parametrize("name", ["fails", "ends", "breaks"])
async def test_the_cause_is_shown_over_a_websocket_in_debug_mode_alone(broken, name, debug, caplog):
    async with opened(broken, f"/{name}") as socket:
        socket.say(id=1, item="a")
        if name == "breaks":
            assert await socket.read() == {"id": 1, "next": "one "}
        error = (await socket.read())["error"]
    assert (error["type"], error["status"]) == ("urn:shoal:problem:internal", 500)
    assert shown(error) == (OF_CAUSE if debug else [])


@pytest.mark.one_loop
@pytest.mark.parametrize("debug", [False], indirect=True)
@pytest.mark.parametrize("rows", [1, 2])
async def test_without_debug_nothing_of_the_cause_is_shown_through_oip(broken, rows, caplog):
    tensor = {"name": "x", "shape": [rows], "datatype": "BYTES", "data": ["a"] * rows}
    answer = await ask(broken, "/v2/models/fails/infer", {"inputs": [tensor]})
    assert answer.status == 500
    assert answer.json()["error"].startswith("The call failed")
    assert shown(answer.headers, answer.body.decode()) == []
