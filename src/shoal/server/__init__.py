"""An ASGI server for trio and asyncio: HTTP/1.1, HTTP/2, WebSocket, TLS, and a graceful shutdown.

It serves any application. It knows `asgi`, and nothing of batching, serving or Shoal's own
application. Read its files in this order:

- `server`: one run, from binding to the last connection; `listeners` and `connection_limit` are its
  addresses, `run` its outcome.
- `shared`: the state that the connections at one address share, and the tasks that call the
  application.
- `transport`, `tls` and `timeouts`: the sockets. Then `http1` and `streams` (HTTP/2 and WebSocket):
  connections, from bytes to calls.
- `served_call`: the base of all calls.
- `proxies`, `access_log` and `log_errors`: the headers of proxies, and the logs.
"""
