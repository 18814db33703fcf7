"""The routes of calls, in all protocols: a call that fails is counted."""

import httpx
import pytest
from live_server import live

import shoal

pytestmark = pytest.mark.anyio

ROW = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}]}


TEXT = {"model": "m", "prompt": "a"}
INPUT = {"model": "m", "input": "a"}
INPUTS = {"model": "m", "input": ["a", "b"]}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/m", 1),
        ("/v2/models/m/infer", ROW),
        ("/v1/completions", TEXT),
        ("/v1/embeddings", INPUT),
        ("/v1/embeddings", INPUTS),
    ],
)
async def test_a_call_that_fails_is_counted_as_failed(path, asked):
    app = shoal.App(protocols=["oip", "openai"])

    @app.endpoint("/m", name="m")
    async def fails(items: list) -> list:
        raise ValueError("no")

    async with (
        live(app) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as asking,
    ):
        assert (await asking.post(path, json=asked)).status_code == 500
        endpoint = app.controller.endpoints["m"]
        assert (endpoint.requests, endpoint.errors) == (1, 1)
