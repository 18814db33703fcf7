"""Models of OpenAI's protocol that tests serve in processes, on the servers of others.

As in `served_app`, a client can wait for what happens in here by calling ``/when``.
"""

from __future__ import annotations

import served_app
from served_app import happen, until
from starlette.applications import Starlette
from starlette.routing import Mount

import shoal

# A client's timeout is over before a heartbeat comes.
app = shoal.App(protocols=["openai"], heartbeat_s=1000)
site = Starlette(lifespan=app.lifespan, routes=[Mount("/ml", app=app)])

app.endpoint("/tell", max_concurrent_batches=100, max_batch_size=1)(served_app.tell)
app.endpoint("/when", max_concurrent_batches=100, max_batch_size=1)(served_app.when)


@app.endpoint("/upper", name="upper")
async def upper(prompts: list[str]) -> list[str]:
    return [prompt.upper() for prompt in prompts]


@app.endpoint("/held", name="held", max_batch_size=1, max_concurrent_batches=1)
async def held(prompts: list[str]):
    """Streams a piece of its only prompt, and then the rest once the prompt is told."""
    [prompt] = prompts
    try:
        happen(f"{prompt} runs")
        yield ["one "]
        await until(prompt)
        yield ["two"]
    finally:
        happen(f"{prompt} ended")
