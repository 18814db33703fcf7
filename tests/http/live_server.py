"""A server on a real socket for tests, and clients that say exactly what they are told to."""

import socket
from contextlib import asynccontextmanager
from functools import partial

import anyio
import h2.config
import h2.connection
import h2.events
import sniffio
from anyio.abc import SocketAttribute

from shoal.asgi.http_options import HttpOptions
from shoal.server.server import serve
from time_limits import HANG_S


class Client:
    """A connection as its client has it."""

    def __init__(self, stream):
        self._stream = stream
        self.socket = stream.extra(SocketAttribute.raw_socket)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info):
        await self.aclose()

    async def send_all(self, data):
        await self._stream.send(data)

    async def send_eof(self):
        await self._stream.send_eof()

    async def receive_some(self):
        """What comes next; nothing when no more will."""
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            return b""

    async def aclose(self):
        await self._stream.aclose()


class LiveServer:
    """A running server; `drained` is there once it has ended."""

    def __init__(self, workers=None):
        self.workers = workers
        self.port = 0
        self.drained = None
        self.stop = anyio.Event()

    async def run(self, app, config, *, task_status):
        def started(url):
            self.port = int(url.rpartition(":")[2])
            task_status.started()

        self.drained = await serve(
            app,
            config,
            shutdown=self.stop.wait,
            on_listening=started,
            front_ends=self._front_ends(config),
        )

    def _front_ends(self, config):
        if self.workers is None:
            return None
        from shoal.commands.server.process import WORKER
        from shoal.front_ends.listener import front_ends

        library = sniffio.current_async_library()
        return front_ends(WORKER, self.workers, config, library, "error")

    async def connect(self):
        return Client(await anyio.connect_tcp("127.0.0.1", self.port))

    def connect_now(self, sent=b""):
        """Connect and send without giving the server's tasks a turn."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.sendall(sent)
        return client

    async def talk(self, sent):
        """Send this on a connection of its own; what comes back until it is closed."""
        async with await self.connect() as client:
            await client.send_all(sent)
            return await read_all(client)

    async def answers(self):
        return (await self.talk(request("/", close=True))).startswith(b"HTTP/1.1 200")


@asynccontextmanager
async def live(app, workers=None, hang_s=HANG_S, **config):
    server = LiveServer(workers)
    config = HttpOptions(**{"port": 0, "allowed_hosts": ["*"], **config})
    with anyio.fail_after(hang_s):
        async with anyio.create_task_group() as tasks:
            await tasks.start(partial(server.run, app, config))
            yield server
            server.stop.set()


def request(path, *, method="GET", headers=(), body=b"", close=False):
    lines = [f"{method} {path} HTTP/1.1", "Host: shoal.test", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def upgrade(*headers):
    return request(
        "/",
        headers=(
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            *headers,
        ),
    )


def counted(app):
    """What was counted, by endpoint, protocol and outcome."""
    return {
        tuple(sample.labels[name] for name in ("endpoint", "protocol", "outcome")): sample.value
        for metric in app.metrics.collect()
        for sample in metric.samples
        if sample.name == "shoal_request_seconds_count"
    }


async def until_quiet():
    """Until what is on its way through the kernel has come, and been dealt with."""
    await anyio.sleep(0.05)
    await anyio.wait_all_tasks_blocked()


async def read_all(client):
    received = []
    try:
        while data := await client.receive_some():
            received.append(data)
    except anyio.BrokenResourceError:
        received.append(b"<reset>")
    return b"".join(received)


async def read_until(client, mark):
    received = b""
    while mark not in received:
        data = await client.receive_some()
        assert data, f"closed after {received!r}"
        received += data
    return received


class Http2Client:
    """An HTTP/2 client that can be told to do wrong."""

    def __init__(self, stream):
        self.stream = stream
        self.connection = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=True,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                header_encoding=None,
            )
        )
        self.connection.initiate_connection()

    async def flush(self):
        await self.stream.send_all(self.connection.data_to_send())

    def ask(self, path=b"/", *, method=b"GET", headers=(), body=b"", end=True):
        stream_id = self.connection.get_next_available_stream_id()
        pairs = [
            (b":method", method),
            (b":path", path),
            (b":scheme", b"http"),
            (b":authority", b"shoal.test"),
            *headers,
        ]
        if method == b"POST" and not headers:
            pairs.append((b"content-type", b"application/json"))
        self.connection.send_headers(stream_id, pairs, end_stream=end and not body)
        if body:
            self.connection.send_data(stream_id, body, end_stream=end)
        return stream_id

    async def fetch(self, path=b"/"):
        asked = self.ask(path)
        await self.flush()
        await self.wait_for(h2.events.StreamEnded, asked)

    async def wait_for(self, kind, stream_id=None):
        """The next event of this kind; what came before it is dropped."""
        while True:
            data = await self.stream.receive_some()
            assert data, f"closed before {kind.__name__}"
            for event in self.connection.receive_data(data):
                if isinstance(event, kind) and (stream_id is None or event.stream_id == stream_id):
                    return event
            await self.flush()


@asynccontextmanager
async def http2(server):
    """A client that speaks HTTP/2; it has sent nothing yet."""
    async with await server.connect() as stream:
        yield Http2Client(stream)
