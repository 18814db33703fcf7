"""``X-Request-Timeout`` and ``X-Priority`` in OpenAI's protocol and in OIP."""

from typing import Any, NamedTuple

import anyio
import pytest
from openai_app import CHATS, COMPLETIONS, EMBEDDINGS, events, text_of

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.http.openai import OpenAI
from shoal.testing import settle
from shoal.testing.asgi import Call, ask

SLOW_S = 10.0


class Form(NamedTuple):
    """A form of a request."""

    path: str
    texts: int
    more: dict[str, Any]

    def body(self, text: str) -> dict[str, Any]:
        if self.path == CHATS:
            return {"messages": [{"role": "user", "content": text}], **self.more}
        if self.path == EMBEDDINGS:
            return {"input": [text] * self.texts, **self.more}
        if self.path == COMPLETIONS:
            return {"prompt": text, **self.more}
        data = [text] * self.texts
        return {"inputs": [{"name": "x", "shape": [len(data)], "datatype": "BYTES", "data": data}]}


WHOLE, PIECES, VECTOR = {"model": "whole"}, {"model": "pieces"}, {"model": "vector"}
FORMS = {
    "completion": Form(COMPLETIONS, 1, WHOLE),
    "completion, n=2": Form(COMPLETIONS, 2, WHOLE | {"n": 2}),
    "completion of a model that streams": Form(COMPLETIONS, 1, PIECES),
    "completion of a model that streams, n=2": Form(COMPLETIONS, 2, PIECES | {"n": 2}),
    "chat": Form(CHATS, 1, WHOLE),
    "chat, n=2": Form(CHATS, 2, WHOLE | {"n": 2}),
    "stream": Form(COMPLETIONS, 1, PIECES | {"stream": True}),
    "stream, n=2": Form(COMPLETIONS, 2, PIECES | {"n": 2, "stream": True}),
    "stream of a whole text": Form(COMPLETIONS, 1, WHOLE | {"stream": True}),
    "stream of a chat": Form(CHATS, 1, PIECES | {"stream": True}),
    "embedding": Form(EMBEDDINGS, 1, VECTOR),
    "embeddings": Form(EMBEDDINGS, 2, VECTOR),
    "row": Form("/v2/models/whole/infer", 1, {}),
    "rows": Form("/v2/models/whole/infer", 2, {}),
}


each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


class Slow:
    """An application whose models take one text at a time, and 10 s for it.

    Attributes:
        texts: The texts in the order in which they were served.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        openai = OpenAI(chat_template=lambda messages: messages[-1]["content"])
        self.app = shoal.App(protocols=[openai, "oip"], heartbeat_s=1000, answer_timeout_s=1000)
        for handler in (self.whole, self.pieces, self.vector):
            self.app.endpoint(
                f"/{handler.__name__}",
                name=handler.__name__,
                max_batch_size=1,
                max_concurrent_batches=1,
                priority_levels=3,
            )(handler)

    async def whole(self, x: list[str]) -> list[str]:
        self.texts += x
        await anyio.sleep(SLOW_S)
        return x

    async def pieces(self, x: list[str]):
        self.texts += x
        await anyio.sleep(SLOW_S)
        yield x

    async def vector(self, x: list[str]) -> list[list[float]]:
        self.texts += x
        await anyio.sleep(SLOW_S)
        return [[1.0] for _ in x]


@pytest.fixture(scope="module")
async def running(anyio_backend):
    slow = Slow()
    async with slow.app.lifespan():
        yield slow


@pytest.fixture
def slow(running):
    running.texts.clear()
    return running


async def timed(app, form, *headers):
    began = anyio.current_time()
    answer = await ask(app, form.path, form.body("a"), headers=headers)
    return answer, anyio.current_time() - began


def message_of(form, answer, **expected):
    """The text of an error, which is in the form of the protocol."""
    assert answer.headers["content-type"] == "application/json"
    if form.path.startswith("/v2"):
        assert set(answer.json()) == {"error"}
        return answer.json()["error"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert {name: error[name] for name in expected} == expected
    return error["message"]


@each_form
async def test_a_call_ends_as_soon_as_its_client_waits_no_longer(slow, form):
    answer, seconds = await timed(slow.app, form, ("X-Request-Timeout", "2.5"))
    assert (answer.status, seconds) == (504, pytest.approx(2.5))
    text = message_of(form, answer, type="server_error", code="timeout")
    assert text.startswith("The call was not answered in time")
    await anyio.sleep(100)
    slow.texts.clear()
    answer, seconds = await timed(slow.app, form, ("X-Request-Timeout", "60"))
    assert (answer.status, seconds) == (200, pytest.approx(SLOW_S * form.texts))
    assert slow.texts == ["a"] * form.texts


@pytest.mark.parametrize("more", [{}, {"n": 2}], ids=["one text", "n=2"])
async def test_a_text_that_has_begun_is_not_complete_in_time(more, openai):
    @openai.endpoint("/halves", name="halves")
    async def halves(prompts: list[str]):
        yield prompts
        await anyio.sleep(SLOW_S)
        yield prompts

    asked = {"model": "halves", "prompt": "a", **more}
    headers = [("X-Request-Timeout", "2.5")]
    async with openai.lifespan():
        began = anyio.current_time()
        answer = await ask(openai, COMPLETIONS, asked, headers=headers)
        assert (answer.status, answer.json()["error"]["code"]) == (504, "timeout")
        answer = await ask(openai, COMPLETIONS, asked | {"stream": True}, headers=headers)
        assert anyio.current_time() - began == pytest.approx(5)
    *pieces, failed = events(answer.body)
    assert text_of(pieces) == (dict.fromkeys(range(more.get("n", 1)), "a"), {})
    assert (failed["error"]["type"], failed["error"]["code"]) == ("server_error", "timeout")


@pytest.mark.one_loop
@each_form
@pytest.mark.parametrize(
    ("header", "values", "told"),
    [
        (
            "X-Request-Timeout",
            ("", "soon", "-1", "1e3", "inf", "2 s"),
            "X-Request-Timeout must be a number of seconds",
        ),
        (
            "X-Priority",
            ("0", "4", "-1", "1.5", "high", ""),
            "The priority must be a whole number from 1, the highest, to 3.",
        ),
    ],
)
async def test_a_value_that_is_none_is_refused_at_once(slow, form, header, values, told):
    for given in values:
        answer, seconds = await timed(slow.app, form, (header, given))
        assert (answer.status, seconds) == (400, 0), given
        assert told in message_of(form, answer, type="invalid_request_error", code=None)
    assert slow.texts == []


@each_form
async def test_requests_are_served_in_the_order_of_their_priorities(slow, form):
    calls = [
        Call(slow.app, form.path, item=form.body(text), headers=[("X-Priority", level)])
        for text, level in (("first", "1"), ("third", "3"), ("second", "2"), ("next", "1"))
    ]
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call.run)
            await settle()
    assert [call.status for call in calls] == [200] * 4
    in_order = ("first", "next", "second", "third")
    assert slow.texts == [text for text in in_order for _ in range(form.texts)]
