"""How many batches a server's model has run, and of how many items, as the server reports it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.http_load import ask

if TYPE_CHECKING:
    from benchmarks.http_process import ServerProcess


class Counted(NamedTuple):
    """What a model has done since its server started."""

    batches: float
    items: float


class Model(NamedTuple):
    """Where servers tell what a model has done.

    Attributes:
        batches: The name of the number of batches in ``/statistics``; see http_statistics.py.
        items: The name of the number of items there.
        stage: The beginning of the name of its stage in mosec's metrics.
    """

    batches: str
    items: str
    stage: str


PREDICT = Model("batches", "items", "Predict_")
GENERATE = Model("stream_batches", "streams", "Generate_")


def counted(server: ServerProcess, model: Model) -> Counted:
    """Asks a server."""
    status, body = ask(server.port, "GET", "/statistics")
    if status == 200:
        statistics: dict[str, float] = json.loads(body)
        return Counted(statistics[model.batches], statistics[model.items])
    text = ask(server.port, "GET", "/metrics")[1].decode("utf-8")
    return Counted(_mosecs(text, "count", model.stage), _mosecs(text, "sum", model.stage))


def _mosecs(metrics: str, kind: str, stage: str) -> float:
    lines = rf'^mosec_service_batch_size_{kind}{{stage="{stage}.*}} (\S+)$'
    return sum(map(float, re.findall(lines, metrics, re.MULTILINE)))
