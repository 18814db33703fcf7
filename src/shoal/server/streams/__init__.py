"""HTTP/2 and WebSocket: h2 and wsproto, which know no sockets, driven by connections with tasks.

Read `connection` first, then `http2` and `http2_stream`, then `call` with `http2_call` and
`websocket`; `http1_websocket` is a WebSocket that has a connection for itself.
"""
