"""The seam for protocols: another one is a codec and its paths, and gets all else of a call."""

import pytest

import shoal
from handlers import ask_once
from shoal.http.json.endpoint import EndpointRoute
from shoal.http.requests.dispatch import Route
from shoal.http.requests.problem import Problem, Refused
from shoal.http.requests.protocol import Codec, HttpProtocol, ProtocolRoutes, StreamForm
from shoal.testing.asgi import Call, ask, calling


class Text(StreamForm):
    media_type = b"text/plain"
    heartbeat = b"...\n"

    def item(self, value):
        return f"+ {value}\n".encode()

    def end(self):
        return b"end\n"

    def error(self, problem, request_id):
        return f"! {problem.kind} {request_id}\n".encode()


class TextCodec(Codec):
    """Numbers as decimal text."""

    def __init__(self, signature):
        [self.parameter] = signature.parameters

    def item(self, exchange, body):
        if not body.isdigit():
            raise Refused(Problem(422, "not-a-number", f"{self.parameter} is no number"))
        return int(body)

    async def respond(self, exchange, result):
        await exchange.respond(200, b"text/plain", str(result).encode())

    def stream(self, exchange):
        return Text()


class TextRoute(EndpointRoute):
    def problem(self, problem, request_id):
        return b"text/plain", f"{problem.status} {problem.kind}".encode()


class NamesRoute(Route):
    def __init__(self, controller):
        super().__init__()
        self.controller = controller

    async def handle(self, exchange):
        await exchange.respond(200, b"text/plain", " ".join(self.controller.endpoints).encode())


class TextRoutes(ProtocolRoutes):
    """Each endpoint at ``/text/<name>``, and their names at ``/text``."""

    def __init__(self, controller, options):
        self.options, self.controller = options, controller

    def of(self, endpoint):
        yield f"/text/{endpoint.name}", "POST", TextRoute(endpoint, TextCodec, self.options)

    def besides(self):
        yield "/text", "GET", NamesRoute(self.controller)


class TextProtocol(HttpProtocol):
    def routes(self, controller, options):
        return TextRoutes(controller, options)


@pytest.fixture
def app():
    return shoal.App(protocols=[TextProtocol()])


async def doubled(items: list[int]) -> list[int]:
    if 13 in items:
        raise ValueError("thirteen")
    return [2 * item for item in items]


async def counted(items: list[int]):
    for step in range(max(items)):
        if step == 13:
            raise ValueError("thirteen")
        yield [step if step < item else shoal.END for item in items]


async def test_a_call_in_another_form_shares_batches_with_the_usual_one(app):
    app.endpoint("/d", max_batch_size=2, batch_wait_timeout_s=60)(doubled)
    async with app.lifespan():
        usual, other = Call(app, "/d", item=3), Call(app, "/text/doubled", body=b"4")
        async with calling(usual, other):
            await usual.returned.wait()
            await other.returned.wait()
        assert usual.answer.json() == 6
        assert (other.answer.status, other.answer.body) == (200, b"8")


async def test_problems_have_its_form(app):
    app.endpoint("/d")(doubled)
    async with app.lifespan():
        refused = await ask(app, "/text/doubled", body=b"x")
        assert (refused.status, refused.body) == (422, b"422 not-a-number")
        failed = await ask(app, "/text/doubled", body=b"13")
        assert (failed.status, failed.body) == (500, b"500 internal")
        assert (await ask(app, "/text/doubled", method="PUT", body=b"1")).status == 405
        (status,) = (await app.controller.status()).endpoints.values()
        assert (status.requests, status.errors) == (2, 1)


async def test_streams_have_its_form(app):
    app.endpoint("/c")(counted)
    async with app.lifespan():
        whole = await ask(app, "/text/counted", body=b"2")
        assert (whole.headers["content-type"], whole.body) == ("text/plain", b"+ 0\n+ 1\nend\n")
        broken = await ask(app, "/text/counted", body=b"14", headers=[("x-request-id", "r1")])
        assert broken.body.endswith(b"+ 12\n! internal r1\n")


async def test_the_first_protocol_with_a_route_at_a_path_has_it(app):
    app.endpoint("/text/doubled")(doubled)
    assert (await ask_once(app, "/text/doubled", 4)).headers["content-type"] == "application/json"


async def test_a_protocol_has_routes_that_belong_to_no_endpoint(app):
    assert (await ask_once(app, "/text", method="GET")).body == b""
    app.endpoint("/d")(doubled)
    assert (await ask_once(app, "/text", method="GET")).body == b"doubled"


class FailingRoutes(TextRoutes):
    def of(self, endpoint):
        if endpoint.name == "bad":
            yield from FAILURES[self.options.title]()
        yield from super().of(endpoint)


def raises():
    raise ValueError("not this one")


FAILURES = {
    "raises": raises,
    "no path": lambda: [("/text/{x}/{x}", "POST", NamesRoute(None))],
    "no text": lambda: [(None, "POST", NamesRoute(None))],
    "no route": lambda: [("/text/bad", "POST", lambda: None)],
    "no triple": lambda: [("/text/bad",)],
}


class FailingProtocol(HttpProtocol):
    def routes(self, controller, options):
        return FailingRoutes(controller, options)


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_protocol_that_fails_later_fails_nothing_else(kind, caplog):
    app = shoal.App(protocols=[FailingProtocol(), "oip"], title=kind)
    app.endpoint("/d")(doubled)
    async with app.lifespan():
        assert (await ask(app, "/text/doubled", body=b"4")).body == b"8"
        await app.controller.create_endpoint("bad", backend="doubled", route="/bad")
        await app.controller.create_endpoint("good", backend="doubled")
        assert (await ask(app, "/bad", 4)).json() == 8
        for path in ("/text/doubled", "/text/good"):
            assert (await ask(app, path, body=b"4")).body == b"8"
        assert (await ask(app, "/text/bad", body=b"4")).status == 404
        assert (await ask(app, "/text/none", body=b"4")).status == 404
        assert (await ask(app, "/v2/models/bad/ready", method="GET")).status == 200
        assert {one.name for one in caplog.records} == {"shoal.http"}
        assert "FailingRoutes" in caplog.text
        await app.controller.delete_endpoint("doubled")
        assert (await ask(app, "/text/doubled", body=b"4")).status == 404
        assert (await ask(app, "/text/good", body=b"4")).body == b"8"


async def test_a_protocol_that_fails_at_once_fails_the_start():
    app = shoal.App(protocols=[FailingProtocol()], title="raises")
    app.endpoint("/bad", name="bad")(doubled)
    with pytest.raises(ValueError, match="not this one"):
        async with app.lifespan():
            pass
