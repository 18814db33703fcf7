"""Who may connect to a model server: tokens, versions, certificates, and peers that lie."""

import logging
import os
import signal
import socket
import threading
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from tempfile import TemporaryDirectory

import anyio
import pytest

from certificates import new_certificate
from handlers import double
from replicas.playing import playing
from replicas.remote_servers import TOKEN, listening
from shoal.batching.current import Identity
from shoal.core.addresses import model_server_address
from shoal.errors import NotAllowed, ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.replicas.code.instance import Instance
from shoal.replicas.contract import Blueprint
from shoal.replicas.process.wire.frames import FrameKind, encoded
from shoal.replicas.process.wire.messages import packed
from shoal.replicas.process.wire.start import sendable
from shoal.replicas.remote import handshake
from shoal.replicas.remote.replica import RemoteReplica
from shoal.replicas.remote.sockets import connect
from shoal.replicas.remote.tls import ServerCertificate
from shoal.serving.controller.controller import Controller
from shoal.serving.model_server import listener as listener_module
from shoal.testing.replicas.stage import Played
from time_limits import HANG_S

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def serving(address, token=TOKEN, certificate=None):
    async with Controller() as controller:
        await controller.create_backend("model", double)
        async with listening(controller, address, token, certificate) as (listener, address):
            yield listener, address


@pytest.fixture
def token_file(tmp_path):
    def write(token, name=None):
        path = tmp_path / (name or f"token-{token[:3]}")
        path.write_text(token)
        return str(path)

    return write


def replica_of(address, path=None, backend="model"):
    options = {} if path is None else {"model_server_token_file": path}
    return RemoteReplica(
        Blueprint(
            identity=Identity(backend, f"{backend}#0"),
            definition=Definition("nowhere:Nothing"),
            placement_options=options,
            address=address,
        )
    )


async def ended(replica):
    """Plays a replica until it ends."""
    played = Played(replica)
    with anyio.fail_after(HANG_S):
        await played.serve()
    return played


async def failure_of(replica):
    played = await ended(replica)
    assert isinstance(played.error, ReplicaNotStarted)
    return str(played.error)


async def answer_of(replica):
    async with playing(replica) as played:
        assert played.description is not None, played.error
        answer = await played.run("__call__", [21])
    assert played.error is None
    return answer


async def test_both_ends_must_know_the_token(token_file, caplog):
    async with serving("tcp") as (_, address):
        assert await answer_of(replica_of(address, token_file(TOKEN))) == [42]
        with caplog.at_level(logging.WARNING):
            said = await failure_of(replica_of(address, token_file("other-" + TOKEN)))
        assert said.endswith(f"{address}: the model server has another token")
        assert "was refused: the client has another token" in caplog.text
        assert "set model_server_token_file" in await failure_of(replica_of(address))
        said = await failure_of(replica_of(address, token_file("short")))
        assert "must have at least 32 characters" in said
        said = await failure_of(replica_of(address, token_file(TOKEN), "other"))
        assert "it has no backend 'other'; it has: model" in said


async def test_a_token_is_replaced_without_a_restart_of_the_ingress(token_file):
    path = token_file(TOKEN, "token")
    async with serving("tcp") as (_, old), serving("tcp", "new-" + TOKEN) as (_, new):
        assert await answer_of(replica_of(old, path)) == [42]
        for half, says in (
            ("", "it is empty"),
            ("new-", "at least 32 characters"),
            ("new-" + TOKEN[:-1], "has another token"),
        ):
            token_file(half, "token")
            assert says in await failure_of(replica_of(new, path))
        token_file("new-" + TOKEN, "token")
        assert await answer_of(replica_of(new, path)) == [42]


async def test_a_unix_socket_needs_no_token_but_both_ends_agree(tmp_path, token_file):
    async with serving(f"unix:{tmp_path}/a", None) as (_, address):
        assert await answer_of(replica_of(address)) == [42]
        said = await failure_of(replica_of(address, token_file(TOKEN)))
        assert "the model server has no token, and there is one here" in said
    async with serving(f"unix:{tmp_path}/b") as (_, address):
        assert await answer_of(replica_of(address, token_file(TOKEN))) == [42]
        said = await failure_of(replica_of(address))
        assert "the model server has a token, and there is none here" in said


def greeting_of(protocol, version):
    fields = list(handshake._GREETING.unpack(handshake._greeting(None)))
    fields[2], fields[4] = protocol, version
    return handshake._GREETING.pack(*fields)


async def test_an_ingress_of_another_version_is_refused_with_both_versions(tmp_path, caplog):
    async with serving(f"unix:{tmp_path}/a", None) as (listener, address):
        with await connected(address) as sock, caplog.at_level(logging.WARNING):
            await handshake.send_all(sock, greeting_of(1, b"0.0.9\n\x1b[2J"))
            with anyio.fail_after(HANG_S):
                await handshake.receive(sock, handshake._GREETING.size)  # it says its own
            assert await closed(sock)
            assert listener.status().refused == {"version": 1}
        said = r"refused: the client runs Shoal 0.0.9\n\x1b[2J with protocol "
        assert said in caplog.text  # escaped


@asynccontextmanager
async def impostor(path, answer):
    """Runs a program that accepts one connection at a UNIX socket, and serves it with `answer`."""
    with socket.socket(socket.AF_UNIX) as listening_socket:
        listening_socket.bind(path)
        listening_socket.listen()
        listening_socket.setblocking(False)

        async def serve():
            await anyio.wait_readable(listening_socket)
            sock, _ = listening_socket.accept()
            sock.setblocking(False)
            with sock:
                await answer(sock)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            yield f"unix:{path}"


async def greeting_from(sock):
    await handshake.receive(sock, handshake._GREETING.size)


async def test_a_model_server_of_another_version_is_refused(tmp_path):
    async def be_newer(sock):
        await greeting_from(sock)
        await handshake.send_all(sock, greeting_of(99, b"9.9"))

    async with impostor(f"{tmp_path}/a", be_newer) as address:
        said = await failure_of(replica_of(address))
    assert "the model server runs Shoal 9.9 with protocol 3.99, and this is Shoal" in said
    assert "run the same version on both" in said


async def test_a_server_that_does_not_know_the_token_is_refused(tmp_path, token_file):
    async def lie(sock):
        await greeting_from(sock)
        await handshake.send_all(sock, handshake._greeting("anything"))
        await handshake.receive(sock, handshake._PROOF)
        await handshake.send_all(sock, b"\x01" + bytes(handshake._PROOF))

    async with impostor(f"{tmp_path}/a", lie) as address:
        said = await failure_of(replica_of(address, token_file(TOKEN)))
    assert "the model server does not know the token" in said


async def test_tls_carries_batches_and_binds_the_proof_to_the_certificate(tmp_path, token_file):
    certificate = ServerCertificate(**new_certificate(tmp_path))
    async with serving("tls", certificate=certificate) as (_, address):
        path = token_file(TOKEN)
        assert await answer_of(replica_of(address, path)) == [42]
        plain = address.replace("tls", "tcp")
        assert "can't use the model server" in await failure_of(replica_of(plain, path))
        # As behind a server in between that has another certificate.
        certificate.fingerprint = b"another"
        assert "has another token" in await failure_of(replica_of(address, path))


async def connected(address):
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    sock.connect(address.removeprefix("unix:"))
    return sock


async def closed(sock):
    """Reads until the other end closes the connection."""
    with anyio.fail_after(HANG_S), suppress(OSError):
        while True:
            await handshake.receive(sock, 1)
    return True


@pytest.mark.parametrize(
    "rubbish", [b"GET / HTTP/1.1\r\n\r\n" * 9, b"SHOAL-MS" + b"\xff" * 200, b"\0" * 500]
)
async def test_rubbish_ends_a_connection_and_nothing_is_unpickled(tmp_path, rubbish, monkeypatch):
    monkeypatch.setattr("shoal.serving.model_server.ingress.unpickled", pytest.fail)
    async with serving(f"unix:{tmp_path}/a") as (listener, address):
        with await connected(address) as sock, anyio.fail_after(HANG_S):
            await handshake.send_all(sock, rubbish)
            await closed(sock)
        assert not listener.ingresses
        why = "version" if rubbish.startswith(b"SHOAL") else "not shoal"
        assert listener.status().refused == {why: 1}


async def test_silence_ends_a_connection_and_others_get_in(tmp_path, monkeypatch, token_file):
    monkeypatch.setattr(listener_module, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(listener_module, "_MOST_UNKNOWN", 2)
    async with serving(f"unix:{tmp_path}/a") as (listener, address):
        silent = [await connected(address) for _ in range(3)]
        for sock in silent:
            await closed(sock)
            sock.close()
        assert listener.status().refused == {"timeout": 2, "too many": 1}
        assert await answer_of(replica_of(address, token_file(TOKEN))) == [42]


@asynccontextmanager
async def lying(tmp_path, lie):
    """Runs a model server of one connection, and yields a replica for it."""

    async def greet_and_lie(sock):
        await handshake.greet_ingress(sock, None, b"")
        await lie(sock)

    async with impostor(f"{tmp_path}/a", greet_and_lie) as address:
        yield replica_of(address)


@pytest.mark.parametrize(
    "frame",
    [
        encoded(FrameKind.CALL_OUT, 1, [b"x"]),
        encoded(FrameKind.RESULT, 1, [b"x"]),
        encoded(FrameKind.RUN, 1, (), (), [(0, 2**40)]),
        encoded(FrameKind.RUN, 1, [b"x"], (), (), [7]),
        [b"\x02\x00\x00\x00" + b"\0" * 12 + (2**50).to_bytes(8, "little")],
        [b"\xee" * 64],
    ],
    ids=["call out", "result", "shared memory", "given back", "too large", "no frame"],
)
async def test_an_ingress_that_lies_is_disconnected_and_others_stay(tmp_path, frame, token_file):
    async with (
        serving(f"unix:{tmp_path}/a") as (_, address),
        playing(replica_of(address, token_file(TOKEN))) as played,
    ):
        with await connect(model_server_address("", address), TOKEN) as sock:
            await handshake.send_all(sock, b"".join(frame))
            await closed(sock)
        assert await played.run("__call__", [1]) == [2]


async def test_calls_before_a_start_or_of_rubbish_fail_alone(tmp_path):
    async with serving(f"unix:{tmp_path}/a") as (_, address):
        with await connect(model_server_address("", address), TOKEN) as sock:
            for frame in (encoded(FrameKind.CANCEL, 77), encoded(FrameKind.CREDIT, 78, [b"no"])):
                await handshake.send_all(sock, b"".join(frame))
            await handshake.send_all(sock, b"".join(encoded(FrameKind.START, 5, [b"no pickle"])))
            with anyio.fail_after(HANG_S):
                head = await handshake.receive(sock, 24)
            assert head[0] == FrameKind.ERROR
            assert int.from_bytes(head[8:16], "little") == 5


@pytest.mark.parametrize("waits", [False, True])
async def test_a_second_start_ends_the_connection_and_no_backend_keeps_it(tmp_path, waits):
    async with serving(f"unix:{tmp_path}/a") as (listener, address):
        with await connect(model_server_address("", address), TOKEN) as sock:
            start = [encoded(FrameKind.START, n, packed(("model", "m#0")).parts) for n in (1, 2)]
            with anyio.fail_after(5):
                await handshake.send_all(sock, b"".join(start[0]))
                if waits:
                    assert (await handshake.receive(sock, 24))[0] == FrameKind.RESULT
                    [ingress] = listener.ingresses
                    assert ingress._backend.on_closing
                await handshake.send_all(sock, b"".join(start[1]))
                await closed(sock)
                while listener.ingresses:
                    await anyio.lowlevel.checkpoint()
        if waits:
            assert not ingress._backend.on_closing


def test_a_replica_needs_an_address():
    with pytest.raises(ValueError, match="address of a model server must be tls://"):
        replica_of("")
    assert replace(replica_of("unix:/a").blueprint, address="").address == ""


@pytest.mark.parametrize(
    "frame",
    [
        encoded(FrameKind.CALL_OUT, 1, [b"x"]),
        encoded(FrameKind.RUN, 1, [b"x"]),
        encoded(FrameKind.RESULT, 1, (), (), [(0, 64)]),
        [b"\x0a\x00\x00\x00" + b"\0" * 12 + (2**50).to_bytes(8, "little")],
        [b"\xee" * 64],
    ],
    ids=["call out", "run", "shared memory", "too large", "no frame"],
)
async def test_a_model_server_that_lies_is_left_at_once(tmp_path, frame):
    async def lie(sock):
        # Results of calls that nobody made are dropped.
        await handshake.send_all(sock, b"".join(encoded(FrameKind.RESULT, 99, [b"x"])))
        await handshake.send_all(sock, b"".join(frame))
        assert await closed(sock)

    async with lying(tmp_path, lie) as replica:
        said = await failure_of(replica)
    assert "it sent an invalid frame" in said


async def test_a_model_server_that_sends_a_step_as_a_result_is_left_at_once(tmp_path):
    description = packed(sendable(Instance(Definition(double)).description))
    answers = {FrameKind.START: FrameKind.RESULT, FrameKind.RUN: FrameKind.PART}

    async def lie(sock):
        kind = FrameKind.PING
        while kind is not FrameKind.RUN:
            head = await handshake.receive(sock, 24)
            kind = FrameKind(head[0])
            id_, size = (int.from_bytes(part, "little") for part in (head[8:16], head[16:]))
            await handshake.receive(sock, size)
            if kind in answers:
                frame = encoded(answers[kind], id_, description.parts)
                await handshake.send_all(sock, b"".join(frame))
        await closed(sock)

    async with lying(tmp_path, lie) as replica, playing(replica, stop=False) as played:
        with anyio.fail_after(HANG_S), pytest.raises(ReplicaDied, match="a step instead of"):
            await played.run("__call__", [1])


@pytest.mark.skipif(
    os.getuid() != 0 or not hasattr(socket, "SO_PEERCRED"), reason="needs root, and Linux"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_without_a_token_the_model_server_of_another_user_is_refused():
    nobody = 65534
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        ready, says_so = os.pipe()
        if not (child := os.fork()):
            os.setuid(nobody)
            listening_socket = socket.socket(socket.AF_UNIX)
            listening_socket.bind(f"{folder}/a")
            os.chmod(f"{folder}/a", 0o777)
            listening_socket.listen()
            os.write(says_so, b"x")
            signal.pause()
        try:
            os.read(ready, 1)
            with pytest.raises(NotAllowed, match="runs as user 65534; set model_server_token_file"):
                await connect(model_server_address("", f"unix:{folder}/a"), None)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # noqa: ASYNC222 - it is dead
            os.close(ready)
            os.close(says_so)


async def test_a_cancelled_connect_leaves_neither_a_socket_nor_a_thread(monkeypatch):
    begun, made = threading.Event(), []

    class Recorded(socket.socket):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)
            begun.set()

    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):  # it accepts nobody, and its backlog is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        port = listening.getsockname()[1]
        monkeypatch.setattr(socket, "socket", Recorded)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect, model_server_address("", f"tcp://127.0.0.1:{port}"), TOKEN)
            await anyio.to_thread.run_sync(begun.wait, HANG_S)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        # A thread that connects would hold it for seconds, and the end of the program with it.
        assert [one.fileno() for one in made] == [-1]
