"""An application for callers with keys: ``shoal serve examples.access.app:app``."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request  # noqa: TC002 - the annotation is read

import shoal
from examples.access.callers import Caller, Keys, Scopes, digest_of, refused
from examples.access.limits import BodyLimit, RateLimit

# In a program of yours: the digests from a file, and the keys nowhere.
CALLERS = [
    Caller("reader", digest_of("reader-key-of-32-random-characters"), ["read"]),
    Caller("writer", digest_of("writer-key-of-32-random-characters"), ["read", "write"]),
]
NEEDED = {"/length": ["read"], "/store": ["write"], "/me": [], "/-/openapi.json": []}


def needed_at(path: str) -> list[dict[str, list[str]]]:
    """What the OpenAPI document says of a path: either kind of key, with these scopes."""
    return [{"bearer": NEEDED[path]}, {"key": NEEDED[path]}]


app = shoal.App(
    security_schemes={
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    },
    middleware=[
        # First, since browsers send their question about an origin without a key.
        Middleware(
            CORSMiddleware,
            allow_origins=["https://page.example"],
            allow_methods=["POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        ),
        Middleware(AuthenticationMiddleware, backend=Keys(CALLERS), on_error=refused),
        Middleware(RateLimit, rate="100/minute"),
        Middleware(Scopes, needed=NEEDED),
        Middleware(BodyLimit, most={"/length": 1000}),
    ],
)


@app.endpoint("/length", methods=("POST",), security=needed_at("/length"), max_batch_size=64)
async def length(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@app.post("/store", security=needed_at("/store"))
async def store(text: str) -> str:
    return f"stored {text}"


@app.get("/me", security=needed_at("/me"))
async def me(request: Request) -> str:
    return str(request.user.display_name)
