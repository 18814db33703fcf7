"""The example of an API with limits: every text is embedded, and the API's limits are kept."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from examples.embeddings_api.api import Api
from examples.embeddings_api.embed import embed_all

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


@contextmanager
def serving(**how: Any) -> Iterator[Api]:
    with Api(**how) as api:
        thread = threading.Thread(target=api.serve_forever, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


async def test_all_texts_are_embedded_though_the_api_refuses_some_requests():
    texts = [f"text {number % 300}" for number in range(5_000)] + ["word " * 5_000] * 2
    with serving(tokens_per_min=60_000_000, run_s=0.01) as api:
        api.requests = 8  # the second request is refused
        vectors = await embed_all(api.url, texts)
    assert [vector[0] for vector in vectors] == [len(text) for text in texts]
    assert api.texts == 301  # equal texts once
    assert api.refused == 1
    assert api.most_running <= 3


async def test_the_server_refuses_what_is_too_much():
    import httpx

    with serving(tokens_per_min=60, run_s=0) as api:
        async with httpx.AsyncClient(base_url=api.url) as client:
            large = await client.post("/embeddings", json={"input": ["a"] * 97})
            answers = [
                await client.post("/embeddings", json={"input": ["a " * 8_000]}) for _ in range(3)
            ]
    assert large.status_code == 400
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2].headers["Retry-After"]) > 7_000
