"""A deployment of Ray Serve whose routes are FastAPI's: one with Shoal's batches, one with Ray's.

serve run examples.inside.ray_serve:app
"""

import asyncio

from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve

import shoal
from examples.inside.model import Model
from shoal.integrations.starlette import cancel_on_disconnect, exception_handlers, lifespan

# Ray Serve runs the lifespan in each replica, so each replica has its own batches.
api = FastAPI(lifespan=lifespan, exception_handlers=exception_handlers())


class Document(BaseModel):
    text: str


class BatchedModel:
    """Not a part of the deployment's class, which Ray pickles before it has a name."""

    def __init__(self) -> None:
        self.model = Model()

    # A plain `def` runs in a worker thread, and the event loop reads requests in the meantime.
    @shoal.batch(max_batch_size=64, max_queued_requests=1024)
    def measure(self, texts: list[str]) -> list[int]:
        return self.model(texts)


# A batch forms from the requests of one replica, so let a replica have two batches of them.
@serve.deployment(num_replicas=2, max_ongoing_requests=128)
@serve.ingress(api)
class Lengths:
    def __init__(self) -> None:
        self.batched = BatchedModel()
        self.model = Model()

    @api.post("/lengths")
    @cancel_on_disconnect
    async def length(self, document: Document) -> int:
        return await self.batched.measure(document.text)

    @api.get("/sizes")
    async def sizes(self) -> dict[str, list[int]]:
        return {"shoal": self.batched.model.sizes, "ray": self.model.sizes}

    # The same with Ray Serve's batches, for comparison.
    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.01)  # type: ignore[untyped-decorator]
    async def measure(self, texts: list[str]) -> list[int]:
        return await asyncio.to_thread(self.model, texts)

    @api.post("/lengths-by-ray")
    async def length_by_ray(self, document: Document) -> int:
        return await self.measure(document.text)  # type: ignore[no-any-return]


app = Lengths.bind()  # type: ignore[attr-defined]
