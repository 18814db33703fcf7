"""The application that images.py has Shoal serve: a path for each way to run the model."""

from __future__ import annotations

import os
from typing import Any, Final

import shoal
from benchmarks.images_handlers import LARGEST, RESNET, WHICH

PROCESS: Final[dict[str, Any]] = {"placement": "process", "start_timeout_s": 120}
if os.environ.get(WHICH) == RESNET:
    PROCESS["gpus"] = 0.5

app: Final = shoal.App()
for _name, _options in (
    ("one", {"max_batch_size": 1, **PROCESS}),
    ("process", {"max_batch_size": LARGEST, **PROCESS}),
    ("thread", {"max_batch_size": LARGEST}),
):
    app.backend(_name, "benchmarks.images_handlers:Classifier", **_options)
    app.route(_name, backend=_name, path=f"/{_name}")
