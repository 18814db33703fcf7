"""A model for KServe: `kserve.yaml` has its runtime, and a service that uses it.

MODEL_NAME=prices MODEL_DIR=/mnt/models shoal serve examples.inside.kserve_app:app
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray  # noqa: TC002 (handlers are read at run time)

import shoal

app = shoal.App(protocols=["oip"])

# KServe downloads the model into this folder, and clients call it by the name of the service.
FOLDER = Path(os.environ.get("MODEL_DIR", "/mnt/models"))
NAME = os.environ.get("MODEL_NAME", "prices")


@app.endpoint("/predict", name=NAME, max_batch_size=64)
class Linear:
    def __init__(self) -> None:
        self.weights = np.load(FOLDER / "weights.npy")

    def __call__(self, features: list[NDArray[np.float32]]) -> list[np.float32]:
        return list(np.stack(features) @ self.weights)
