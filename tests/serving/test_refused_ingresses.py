"""What a model server logs about ingresses that it refuses again and again."""

import anyio

from shoal.replicas.remote.handshake import HandshakeRefused
from shoal.serving.model_server.listener import ModelServerListener


async def test_a_refused_ingress_that_reconnects_is_logged_once_a_minute(caplog):
    listener = ModelServerListener([], None)
    refused = HandshakeRefused("the client has another token", "token")
    for attempt in range(100):
        listener._refuse("token", f"the ingress at 10.0.0.1:{attempt}", refused)
        await anyio.sleep(1)
    assert caplog.text.count("the ingress at 10.0.0.1:") == 2
    assert listener.status().refused == {"token": 100}
    # Another host and another reason are news.
    listener._refuse("token", "the ingress at 10.0.0.2:1", refused)
    listener._refuse("timeout", "the ingress at 10.0.0.1:1", "no handshake within 5 s")
    assert len(caplog.records) == 4


async def test_connections_from_anywhere_write_few_log_lines(caplog):
    listener = ModelServerListener([], None)
    for host in range(1000):
        listener._refuse("timeout", f"the ingress at 10.0.{host}:1", "no handshake within 5 s")
    assert len(caplog.records) == 64
    assert listener.status().refused == {"timeout": 1000}
    await anyio.sleep(60)
    listener._refuse("timeout", "the ingress at 10.0.0.1:2", "no handshake within 5 s")
    assert len(caplog.records) == 65
