"""GraphQL whose requests share their queries: strawberry, with a `shoal.Loader` for each request.

    pip install '.[serve]' strawberry-graphql
    shoal serve examples.graphql.app:app --event-loop asyncio

A resolver asks for one row. A batched function reads the rows of all requests that ask at the same
time, in one query. The loader of a request asks for each row once.
"""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import strawberry
from starlette.applications import Starlette
from starlette.routing import Route
from strawberry.asgi import GraphQL

import shoal

Row = dict[str, Any]

database = sqlite3.connect(":memory:", check_same_thread=False)
database.executescript(
    """
    create table book (id integer primary key, title text, author integer);
    create table author (id integer primary key, name text, publisher integer);
    create table publisher (id integer primary key, name text);
    insert into publisher values (1, 'Sea Press'), (2, 'Tide Books');
    insert into author values (1, 'Ada', 1), (2, 'Grace', 2), (3, 'Edith', 1);
    """
)
database.executemany(
    "insert into book values (?, ?, ?)", [(n, f"Book {n}", n % 3 + 1) for n in range(1, 100)]
)


def rows(table: str, ids: list[int]) -> list[Row | KeyError]:
    """Reads rows by their ids in one query; an error stands for each that is not there."""
    marks = ", ".join("?" * len(ids))
    cursor = database.execute(f"select * from {table} where id in ({marks})", ids)
    names = [name for name, *_ in cursor.description]
    found = {row[0]: dict(zip(names, row, strict=True)) for row in cursor}
    return [found.get(id_) or KeyError(f"no {table} {id_}") for id_ in ids]


@shoal.batch(max_batch_size=500)
def books(ids: list[int]) -> list[Row | KeyError]:
    return rows("book", ids)


@shoal.batch(max_batch_size=500)
def authors(ids: list[int]) -> list[Row | KeyError]:
    return rows("author", ids)


@shoal.batch(max_batch_size=500)
def publishers(ids: list[int]) -> list[Row | KeyError]:
    return rows("publisher", ids)


@strawberry.type
class Publisher:
    name: str


@strawberry.type
class Author:
    name: str
    publisher_id: strawberry.Private[int]

    @strawberry.field
    async def publisher(self, info: strawberry.Info) -> Publisher:
        row = await info.context["publishers"].load(self.publisher_id)
        return Publisher(name=row["name"])


@strawberry.type
class Book:
    title: str
    author_id: strawberry.Private[int]

    @strawberry.field
    async def author(self, info: strawberry.Info) -> Author:
        row = await info.context["authors"].load(self.author_id)
        return Author(name=row["name"], publisher_id=row["publisher"])


@strawberry.type
class Query:
    @strawberry.field
    async def book(self, info: strawberry.Info, id: int) -> Book:  # noqa: A002
        row = await info.context["books"].load(id)
        return Book(title=row["title"], author_id=row["author"])


schema = strawberry.Schema(Query)


def loaders() -> dict[str, shoal.Loader[int, Row]]:
    """The loaders of one request."""
    calls = {"books": books, "authors": authors, "publishers": publishers}
    return {name: shoal.Loader(call) for name, call in calls.items()}


class Api(GraphQL[Any, Any]):
    async def get_context(self, request: Any, response: Any) -> Any:
        return {"request": request, "response": response, **loaders()}


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with shoal.open_batchers(books, authors, publishers):
        yield


app = Starlette(lifespan=lifespan, routes=[Route("/graphql", Api(schema))])
