"""HTTP/2 and WebSocket: connections with tasks drive h2 and wsproto, which know no sockets.

Read `connection` first, then `http2` and `http2_stream`, then `call` and `websocket`.
`http1_websocket` is a WebSocket with a connection of its own.
"""
