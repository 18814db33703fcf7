"""A server in a thread of the test's process, for the commands that drive one."""

import threading
from contextlib import contextmanager, suppress

import trio

from shoal import App
from shoal.asgi.http_options import HttpOptions
from shoal.http.app.admin_mount import AppAdmin
from shoal.server.server import serve
from time_limits import HANG_S


@contextmanager
def served(*, token=None, allowed=("driven_models",)):
    """Serves an empty application whose admin API is at its port; gives the URL."""
    told = []
    is_up = threading.Event()

    async def run():
        shutdown = trio.Event()
        app = App()
        admin = AppAdmin(app, token=token, allowed_modules=allowed)

        def started(url):
            told.extend([url, trio.lowlevel.current_trio_token(), shutdown])
            is_up.set()

        with trio.fail_after(HANG_S):
            await serve(admin, HttpOptions(port=0), shutdown=shutdown.wait, on_listening=started)

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert is_up.wait(HANG_S)
    url, loop, shutdown = told
    try:
        yield url
    finally:
        with suppress(trio.RunFinishedError):  # the test may have shut it down
            loop.run_sync_soon(shutdown.set)
        thread.join(HANG_S)
