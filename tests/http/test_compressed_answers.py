"""Compressed answers: off by default, as the client accepts them, streams message by message."""

import gzip
import json
import zlib

import anyio
import httpx
import numpy as np
import pytest
from backports import zstd
from live_server import live

import shoal
from shoal.http.requests import exchange
from shoal.http.requests.compressed import CompressedStream
from shoal.http.requests.stream_forms import JSON_LINES, SERVER_SENT_EVENTS
from shoal.testing.asgi import Call, ask, calling

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

DECOMPRESS = {"gzip": gzip.decompress, "zstd": zstd.decompress}


def made_app(**options):
    app = shoal.App(**{"compress_from_bytes": 100, **options})

    @app.endpoint("/text", methods=("GET", "POST"))
    async def text(sizes: list[int] = 500) -> list[str]:
        return ["x" * size for size in sizes]

    @app.endpoint("/bytes")
    async def raw(sizes: list[int]) -> list[bytes]:
        return [bytes(size) for size in sizes]

    @app.endpoint("/array")
    async def array(sizes: list[int]) -> list:
        return [np.zeros(size) for size in sizes]

    @app.endpoint("/words")
    async def words(items: list[int]):
        for step in range(max(items)):
            if step == 13:
                raise ValueError("thirteen")
            yield [f"word {step}" if step < item else shoal.END for item in items]

    return app


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("gzip, zstd", "zstd"),
        ("gzip;q=1, zstd;q=0.5", "gzip"),
        ("*", "zstd"),
        ("zstd;q=0, *;q=0.5", "gzip"),
        ("br", None),
        ("gzip;q=0", None),
        ("identity, gzip;q=0.5", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("path", ["/text", "/bytes", "/array"])
async def test_an_answer_has_the_coding_that_the_client_accepts(path, accepted, coding):
    app = made_app()
    async with app.lifespan():
        plain = await ask(app, path, 500)
        answer = await ask(app, path, 500, headers=[("accept-encoding", accepted)])
    assert "content-encoding" not in plain.headers
    assert answer.headers.get("content-encoding") == coding
    assert "accept-encoding" in answer.headers["vary"]
    assert int(answer.headers["content-length"]) == len(answer.body)
    if coding is not None:
        assert len(answer.body) < len(plain.body)
        assert DECOMPRESS[coding](answer.body) == plain.body


@pytest.mark.real_time
async def test_workers_compress_answers_for_the_servers_process(monkeypatch):
    async def answers(server):
        found = []
        async with httpx.AsyncClient(headers={"accept-encoding": "gzip"}) as client:
            for method, path, item in (
                ("POST", "/text", 500),
                ("POST", "/text", 9),
                ("POST", "/bytes", 300_000),
                ("HEAD", "/text", None),
            ):
                sent = {} if item is None else {"json": item}
                url = f"http://127.0.0.1:{server.port}{path}"
                got = await client.request(method, url, **sent)
                headers = dict(got.headers)
                del headers["date"], headers["x-request-id"]
                found.append((got.status_code, headers, got.content))
        return found

    async with live(made_app()) as server:
        here = await answers(server)
    compressed, sizes = exchange.compressed, []

    def counted(accepted, body, headers, least):
        sizes.append(len(body))
        return compressed(accepted, body, headers, least)

    monkeypatch.setattr(exchange, "compressed", counted)
    async with live(made_app(), workers=1) as server:
        assert await answers(server) == here
    assert [headers.get("content-encoding") for _, headers, _ in here][:3] == ["gzip", None, "gzip"]
    # What is small, or of which the length alone is asked for, is not worth the way.
    assert max(sizes) < 1000


async def test_small_answers_and_those_of_other_applications_are_left_as_they_are():
    headers = [("accept-encoding", "gzip")]
    app = made_app()
    async with app.lifespan():
        assert "content-encoding" not in (await ask(app, "/text", 97, headers=headers)).headers
        answer = await ask(app, "/text", 98, headers=headers)
        assert answer.headers["content-encoding"] == "gzip"
        head = await ask(app, "/text?sizes=500", method="HEAD", headers=headers)
        whole = await ask(app, "/text?sizes=500", method="GET", headers=headers)
    assert head.body == b""
    assert head.headers["content-length"] == whole.headers["content-length"]


async def test_it_is_off_by_default():
    app = made_app(compress_from_bytes=None)
    async with app.lifespan():
        for path in ("/text", "/bytes", "/words"):
            answer = await ask(app, path, 500, headers=[("accept-encoding", "gzip")])
            assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("count", [0, 3, 14])
async def test_a_stream_is_compressed_as_a_whole(coding, count):
    headers = [("accept-encoding", coding), ("accept", "application/x-ndjson")]
    app = made_app()
    async with app.lifespan():
        answer = await ask(app, "/words", count, headers=headers)
    assert answer.headers["content-encoding"] == coding
    lines = DECOMPRESS[coding](answer.body).decode().splitlines()
    words = [json.loads(line) for line in lines if line]
    assert words[:-1] == [{"item": f"word {step}"} for step in range(min(count, 13))]
    assert list(words[-1]) == (["error"] if count > 13 else ["end"])


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_each_message_of_a_stream_can_be_read_when_it_was_sent(coding):
    goes_on = anyio.Event()
    app = shoal.App(compress_from_bytes=1, heartbeat_s=15)

    @app.endpoint("/held")
    async def held(items: list[int]):
        yield items
        await goes_on.wait()
        yield items

    async with app.lifespan():
        call = Call(app, "/held", item=1, headers=[("accept-encoding", coding)])
        async with calling(call):
            await anyio.sleep(40)  # of virtual time: two heartbeats
            read = zlib.decompressobj(31) if coding == "gzip" else zstd.ZstdDecompressor()
            so_far = b"".join(one["body"] for one in call.sent if "body" in one)
            assert read.decompress(so_far) == b":\ndata: 1\n\n"
            goes_on.set()
            await call.returned.wait()
        assert len([one for one in call.sent if one.get("body") in BLOCKS]) == 2
        assert DECOMPRESS[coding](call.answer.body).startswith(
            b":\ndata: 1\n\ndata: 1\n\nevent: end"
        )


BLOCKS = {b"\x00\x00\x00\xff\xff", b"\x00\x00\x00"}


@pytest.mark.parametrize("coding", [b"gzip", b"zstd"])
@pytest.mark.parametrize("form", [SERVER_SENT_EVENTS, JSON_LINES])
def test_heartbeats_may_come_at_any_place(coding, form):
    made = CompressedStream(form, coding)
    sent = [made.start, made.heartbeat]
    plain = form.heartbeat
    for number in range(200):
        value = "as before " * (number % 7)
        sent += [made.item(value), made.heartbeat]
        plain += form.item(value)
    sent += [made.heartbeat, made.end()]
    assert DECOMPRESS[coding.decode()](b"".join(sent)) == plain + form.end()


@pytest.mark.real_time
@pytest.mark.parametrize("accepted", ["gzip", "zstd", "gzip, deflate, br, zstd"])
async def test_a_real_client_reads_them(accepted):
    app = made_app()
    async with (
        live(app) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as asking,
    ):
        asking.headers["accept-encoding"] = accepted
        answer = await asking.post("/text", json=500)
        decoded = answer.content if "zstd" not in accepted else zstd.decompress(answer.content)
        assert json.loads(decoded) == "x" * 500
        async with asking.stream("POST", "/words", json=1000) as stream:
            raw = b"".join([piece async for piece in stream.aiter_raw()])
        coding = stream.headers["content-encoding"]
        assert DECOMPRESS[coding](raw).count(b"data: ") == 14
