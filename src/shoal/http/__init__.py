"""Serving over HTTP: `App`, a plain ASGI application, and the server that runs it.

`app` holds what a program declares. `requests` answers one request: a codec reads the item and
writes the result or the stream in the form of a protocol (`requests.codec`), and a call of the
endpoint stands between it and the engine (`requests.call`). `requests.problem` turns errors into
answers. `admin` is the admin API. `server` runs any ASGI application and does not depend on the
rest.
"""
