"""model.py under BentoML, whose batches have no streams; for `bentoml serve`."""

from __future__ import annotations

import bentoml  # type: ignore[import-not-found, unused-ignore]

from benchmarks.http_peers import model


@bentoml.service(traffic={"timeout": 60})  # type: ignore[untyped-decorator, unused-ignore]
class Model:
    """The model."""

    @bentoml.api(  # type: ignore[untyped-decorator, unused-ignore]
        batchable=True, max_batch_size=model.SIZE, max_latency_ms=1000, route="/predict"
    )
    def predict(self, values: list[int]) -> list[int]:
        """Returns a result for each item of one or more requests."""
        return model.predict(values)
