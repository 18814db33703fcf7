"""What `test_openapi_forms.py` serves: endpoints of many shapes."""

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

import shoal

app = shoal.App(
    title="Shapes",
    version="1.2.3",
    security_schemes={
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "token": {"type": "http", "scheme": "bearer"},
    },
)
site = Starlette(lifespan=app.lifespan, routes=[Mount("/ml", app=app)])


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Comment(BaseModel):
    author: str = Field(min_length=1, examples=["cod"])
    score: float | None = None
    colour: Colour = Colour.RED


class Thread(BaseModel):
    comment: Comment
    answers: "list[Thread]" = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Judged(BaseModel):
    author: str
    score: float
    at: dt.datetime


@app.endpoint("/judge", max_batch_size=8)
async def judge(comments: list[Comment]) -> list[Judged]:
    """Judges comments.

    The text is *Markdown*.
    """
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [Judged(author=one.author, score=one.score or 0.0, at=now) for one in comments]


@app.endpoint("/depth", methods=("POST",))
async def depth(threads: list[Thread]) -> list[int]:
    def of(thread: Thread) -> int:
        return 1 + max(map(of, thread.answers), default=0)

    return [of(thread) for thread in threads]


@app.endpoint("/move")
async def move(points: list[Point]) -> list[Point]:
    return [Point(one.x + 1, one.y) for one in points]


@app.endpoint("/add", priority_levels=3)
async def add(left: list[int], right: list[int]) -> list[int]:
    return [one + other for one, other in zip(left, right, strict=True)]


@app.endpoint("/times")
async def times(number: list[Annotated[float, Field(ge=-1e300, le=1e300)]]) -> list[float]:
    return [one * 1e10 for one in number]  # which may be more than a float can hold


@app.endpoint("/kind")
async def kind(kinds: list[Literal["a", "b"] | None]) -> list[str | None]:
    return [*kinds]


@app.endpoint("/price", methods=("PUT",))
async def price(prices: list[decimal.Decimal]) -> list[decimal.Decimal]:
    return [*prices]


@app.endpoint("/raw")
async def raw(bodies: list[bytes]) -> list[int]:
    return [len(body) for body in bodies]


@app.endpoint("/array")
async def array(arrays: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    return [*arrays]


@app.endpoint("/anything")
def anything(data):
    return data


@app.endpoint("/nothing")
def nothing() -> str:
    return "nothing"


@app.endpoint("/users/{number:int}", methods=("GET",), responses={404: "No such user"})
def user(request: Request) -> dict[str, int]:
    number = request.path_params["number"]
    if number > 100:
        raise HTTPException(404, "No such user")
    return {"number": number % 2**53}


@app.endpoint("/users/{ident:uuid}", methods=("DELETE",))
def forget(request: Request) -> uuid.UUID:
    return request.path_params["ident"]


@app.endpoint("/files/{path:path}", methods=("GET", "HEAD"))
def file(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.path_params["path"])


@app.endpoint("/count", methods=("GET", "POST"), max_batch_size=4)
async def count(
    until: list[Annotated[int, Field(ge=0, le=5)]],
) -> AsyncIterator[list[int | type[StopIteration]]]:
    for number in range(max(until)):
        yield [number if number < one else StopIteration for one in until]


@app.endpoint("/words", methods=("POST",))
def words(text: str) -> Iterator[dict[str, str]]:
    for word in text.split()[:5]:
        yield {"word": word}


async def note_of(request: Request) -> tuple[str, str]:
    form = await request.form()
    return str(form.get("text", "")), request.headers.get("x-tenant", "")


@app.endpoint("/notes/{number:int}", methods=("POST", "PUT"), decode=note_of)
async def note(texts: list[str], tenants: list[str]) -> list[dict[str, str]]:
    return [{"text": one, "tenant": by} for one, by in zip(texts, tenants, strict=True)]


def shout(result: str) -> PlainTextResponse:
    return PlainTextResponse(result.upper())


@app.endpoint("/shout", methods=("GET", "POST"), encode=shout)
async def shouted(text: list[str]) -> list[str]:
    return [*text]


@app.endpoint("/photo", methods=("POST",))
def photo(image: bytes) -> bytes:
    return image


@app.endpoint("/blob", methods=("POST",))
def blob(size: Annotated[int, Field(ge=0, le=99)]) -> bytes | None:
    return bytes(size) if size else None
