"""Serving over HTTP: `App`, a plain ASGI application, and the server that runs it.

`app` holds what a program declares. `requests.endpoint` answers one call: it reads the request
(`exchange`, `payload`), makes the call while it watches for a disconnect (`disconnect`), and sends
a result or a stream of results (`exchange`, `streaming`). `requests.problem` turns errors into
answers. `admin` is the admin API. `server` runs any ASGI application and does not depend on the
rest.
"""
