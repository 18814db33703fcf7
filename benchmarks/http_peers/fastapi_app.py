"""FastAPI applications: one with a route that answers with its item, and one without routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI  # type: ignore[import-not-found, unused-ignore]


async def noop(item: dict[str, Any]) -> dict[str, Any]:
    """Returns the item."""
    return item


app = FastAPI()
app.post("/noop")(noop)

empty_app = FastAPI()
