"""model.py under FastAPI, without batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI  # type: ignore[import-not-found, unused-ignore]
from fastapi.responses import StreamingResponse  # type: ignore[import-not-found, unused-ignore]
from pydantic import BaseModel

from benchmarks.http_peers import model

if TYPE_CHECKING:
    from collections.abc import Iterator


class Item(BaseModel):
    """The body of a request."""

    value: int


app = FastAPI()


@app.post("/predict")  # type: ignore[untyped-decorator, unused-ignore]
def predict(item: Item) -> Item:
    """Runs the model for one item, in a thread."""
    return Item(value=model.predict([item.value])[0])


@app.post("/generate")  # type: ignore[untyped-decorator, unused-ignore]
def generate(item: Item) -> StreamingResponse:
    """Streams the tokens of one item."""

    def events() -> Iterator[str]:
        for (token,) in model.generate([item.value]):
            yield f"data: {token}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
