"""The applications that http.py has Shoal serve, as users write them."""

from __future__ import annotations

from typing import Final

import shoal
from benchmarks.http_handlers import (
    BATCH_WAIT_TIMEOUT_S,
    MAX_BATCH_SIZE,
    at_once,
    embed,
    generate,
    noop,
    paced,
    predict,
)
from benchmarks.http_statistics import statistics_page

noop_app: Final = shoal.App()
noop_app.endpoint("/noop", max_batch_size=MAX_BATCH_SIZE)(noop)

embed_app: Final = shoal.App()
embed_app.endpoint("/embed", max_batch_size=MAX_BATCH_SIZE)(embed)

tokens_app: Final = shoal.App()
tokens_app.endpoint("/paced", max_batch_size=MAX_BATCH_SIZE)(paced)
tokens_app.endpoint("/at-once", max_batch_size=MAX_BATCH_SIZE)(at_once)


model_app: Final = shoal.App()
for _path, _handler in (("/predict", predict), ("/generate", generate)):
    model_app.endpoint(
        _path, max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_TIMEOUT_S
    )(_handler)
model_app.mount("/statistics", statistics_page)
