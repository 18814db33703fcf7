"""model.py under Ray Serve; run as a module. RAY_SERVE_* in the environment choose its modes."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING, Any, Final

import ray  # type: ignore[import-not-found, unused-ignore]
from ray import serve  # type: ignore[import-not-found, unused-ignore]
from starlette.responses import StreamingResponse

from benchmarks.http_peers import model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

OPTIONS: Final[Any] = {"max_batch_size": model.SIZE, "batch_wait_timeout_s": model.WAIT_S}


@serve.deployment(max_ongoing_requests=1000)  # type: ignore[untyped-decorator, unused-ignore]
class Model:
    """The model."""

    @serve.batch(**OPTIONS)  # type: ignore[untyped-decorator, unused-ignore]
    async def predict(self, values: list[int]) -> list[int]:
        """Returns a result for each item."""
        return model.predict(values)

    @serve.batch(**OPTIONS)  # type: ignore[untyped-decorator, unused-ignore]
    async def generate(self, values: list[int]) -> AsyncIterator[list[str]]:
        """Yields the events of a step."""
        for tokens in model.generate(values):
            yield [f"data: {token}\n\n" for token in tokens]

    async def __call__(self, request: Request) -> Any:
        """Responds to a request."""
        value = (await request.json())["value"]
        if request.url.path == "/generate":
            return StreamingResponse(self.generate(value), media_type="text/event-stream")
        return {"value": await self.predict(value)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    ray.init(include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": parser.parse_args().port})
    serve.run(Model.bind(), route_prefix="/")  # type: ignore[attr-defined, unused-ignore]
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    serve.shutdown()
    ray.shutdown()
