"""Embeds 5,000 texts with an API that limits its callers; see api.py, which stands for the API.

pip install '.[cache,client,progress]'
python -m examples.embeddings_api.embed
"""

import threading
from collections.abc import Iterable

import anyio
import httpx

import shoal
from examples.embeddings_api.api import Api


def tokens(text: str) -> int:
    return len(text.split())


async def embed_all(url: str, texts: Iterable[str]) -> list[list[float]]:
    async with httpx.AsyncClient(base_url=url) as client:

        @shoal.batch(
            max_batch_size=96,  # texts in a request
            max_batch_cost=8_000,  # tokens in a request
            batch_size_fn=tokens,
            max_concurrent_batches=3,  # requests at a time
            limit=shoal.Limit(cost_per_min=1_000_000),  # tokens a minute
            cache=shoal.Cache(max_size=100_000, ttl_s=3600),  # equal texts once
        )
        async def embed(texts: list[str]) -> list[list[float]]:
            response = await client.post("/embeddings", json={"input": texts})
            shoal.raise_for_retry(response)
            response.raise_for_status()
            return [one["embedding"] for one in response.json()["data"]]

        async with shoal.open_batchers(embed):
            return await embed.map(texts, progress=True)


async def main() -> None:
    texts = [f"text {number % 3_000} " + "of some words " * 15 for number in range(5_000)]
    with Api() as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        vectors = await embed_all(api.url, texts)
        api.shutdown()
    print(f"{len(vectors):,} vectors; {api.texts:,} texts and {api.tokens:,} tokens were sent, ")
    print(f"in up to {api.most_running} requests at a time; {api.refused} requests were refused")


if __name__ == "__main__":
    anyio.run(main)
