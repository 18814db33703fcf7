"""The Flask and Django examples, under gunicorn and by themselves."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import anyio
import httpx
import pytest

from time_limits import HANG_S

pytest.importorskip("flask")
pytest.importorskip("django")

import shoal
from examples.wsgi import django_site, flask_site, model
from shoal.testing.asgi import Call, ask, calling

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

SITES = {"flask": flask_site, "django": django_site}


@contextmanager
def gunicorn(app, home, *options):
    """Runs gunicorn in a process; returns its URL."""
    config = ("-c", "python:examples.wsgi.gunicorn_config", "--workers", "1")
    command = [sys.executable, "-m", "gunicorn", *config, "-b", "127.0.0.1:0", *options, app]
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as server:
        try:
            found = None
            while not found:
                line = server.stderr.readline()
                assert line, "gunicorn did not start"
                found = re.search(r"Listening at: (http://127[.\d]+:\d+)", line)
            yield found[1]
        finally:
            server.send_signal(signal.SIGTERM)
            said = server.stderr.read()
            assert server.wait() == 0, said
            assert "Traceback" not in said


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("framework", SITES)
def test_requests_share_batches_under_gunicorn(framework, preload, tmp_path):
    pytest.importorskip("gunicorn")
    options = ["--preload"] if preload else []
    app = f"tests.examples.counted_wsgi:of_{framework}"
    with (
        gunicorn(app, tmp_path, *options) as url,
        httpx.Client(
            base_url=url, limits=httpx.Limits(max_connections=32), timeout=HANG_S
        ) as client,
        ThreadPoolExecutor(32) as pool,
    ):
        texts = ["x" * number for number in range(1, 65)]
        post = partial(client.post, "/embed")
        answers = list(pool.map(lambda text: post(json={"text": text}).json(), texts))
        assert answers == [[float(len(text)), 1.0] for text in texts]
        sizes = client.get("/sizes").json()
    assert sum(sizes) == 64
    assert max(sizes) >= 8


@pytest.mark.parametrize("framework", SITES)
def test_a_view_calls_the_open_function_and_explains_errors(framework, monkeypatch):
    site = SITES[framework]
    monkeypatch.setattr(model.time, "sleep", lambda _: None)
    transport = httpx.WSGITransport(app=site.app)
    with httpx.Client(transport=transport, base_url="http://site") as client:
        with shoal.blocking(model.embed):
            assert client.post("/embed", json={"text": "eel"}).json() == [3.0, 1.0]
        headers = {"X-Request-ID": "id-of-client"}

        class Full:
            @staticmethod
            def from_thread(_):
                raise shoal.errors.Overloaded("full")

        monkeypatch.setattr(site, "embed", Full)
        refused = client.post("/embed", json={"text": "eel"}, headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.headers["content-type"].startswith("application/problem+json")
    assert refused.json()["type"] == "urn:shoal:problem:overloaded"
    assert refused.json()["instance"] == "id-of-client"


def test_an_error_of_another_kind_is_djangos():
    middleware = django_site.ShoalErrors(lambda request: None)
    assert middleware.process_exception(None, LookupError()) is None


def test_an_async_view_of_django_shares_batches_and_leaves_them():
    async def main():
        site = django_site.site
        held, go = anyio.Event(), anyio.Event()

        @shoal.batch
        async def hold(texts: list[str]) -> list[list[float]]:
            held.set()
            await go.wait()
            return [[1.0] for _ in texts]

        async with site.router.lifespan_context(site):
            assert (await ask(site, "/embed-async", {"text": "eel"})).json() == [3.0, 1.0]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(django_site, "embed", hold)
                call = Call(site, "/embed-async", item={"text": "eel"})
                async with calling(call):
                    await held.wait()
                    call.leave()
                    await call.returned.wait()
            assert hold.batcher.statistics().cancelled == 1

    anyio.run(main, backend="asyncio")
