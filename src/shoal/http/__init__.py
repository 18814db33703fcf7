"""Serving over HTTP: `App`, a plain ASGI application, and the server that runs it.

`app` declares, `keeping` holds the batchers open, `endpoint` answers one call: it reads the request
(`body`, `payload`), makes the call while it watches the client (`disconnect`), and sends a result
or a stream of them (`asgi`, `streaming`). Whatever goes wrong becomes an answer in `problem`. The
server is in `server`, and knows nothing of all this: it takes any ASGI application.
"""
