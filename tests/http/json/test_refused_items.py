"""Annotations that would let a client set what code trusts, which are refused."""

from typing import Annotated

import fastapi
import pytest
from pydantic import BaseModel

import shoal
from shoal.testing.asgi import ask


class Comment(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("annotation", "default", "words"),
    [
        (Annotated[int, fastapi.Depends(int)], ..., r"'one' is marked with Depends\(\) of FastAPI"),
        (Annotated[int, fastapi.Security(int)], ..., r"'one' is marked with Security\(\) of FastA"),
        (Annotated[str, fastapi.Header()], ..., r"'one' is marked with Header\(\) of FastAPI"),
        (Annotated[str, fastapi.Body()], ..., r"'one' is marked with Body\(\) of FastAPI"),
        (Annotated[bytes, fastapi.File()], ..., r"'one' is marked with File\(\) of FastAPI"),
        (fastapi.UploadFile, ..., "'one' is an UploadFile, which JSON can't hold"),
        (int, fastapi.Depends(int), r"'one' is marked with Depends\(\) of FastAPI"),
        (int, fastapi.Query(5), r"'one' is marked with Query\(\) of FastAPI"),
    ],
)
@pytest.mark.parametrize("others", [False, True])
def test_what_only_fastapi_obeys_is_refused(annotation, default, words, others):
    def alone(one=default): ...

    def beside(text: str, one=default): ...

    handler = beside if others else alone
    handler.__annotations__["one"] = annotation
    if default is ...:
        handler.__defaults__ = None
    with pytest.raises(TypeError, match=words):
        shoal.App().post("/x")(handler)


@pytest.mark.one_loop
async def test_a_dependency_is_never_what_a_caller_says(app):
    def trusting(user: Annotated[str, fastapi.Depends(str)]) -> str:
        return user

    app.backend("trusting", trusting)
    app.route("trusting", backend="trusting", path="/x")
    async with app.lifespan():
        assert (await ask(app, "/x?user=admin", method="GET")).status == 500
        assert (await ask(app, "/x", "admin")).status == 500
        assert (await ask(app, "/x", {"user": "admin"})).status == 500


def of_two(user: str, text: str): ...
def of_one(user: int | None = None): ...
async def of_many(user: list[int]): ...


@pytest.mark.parametrize("handler", [of_two, of_one, of_many])
def test_a_parameter_with_the_name_of_one_of_the_path_is_refused(handler, app):
    words = r"'user' has the name of a parameter of the path /x/\{user:int\}.*decode function"
    with pytest.raises(ValueError, match=words):
        app.endpoint("/x/{user:int}")(handler)
    app.endpoint("/x/{other}")(handler)


def of_record(user: Comment): ...
def of_bytes(user: bytes): ...


@pytest.mark.parametrize("handler", [of_record, of_bytes])
def test_it_is_clear_where_a_whole_body_comes_from(handler):
    shoal.App().endpoint("/x/{user:int}")(handler)
