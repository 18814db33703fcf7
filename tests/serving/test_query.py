"""What code without annotations gets of a request that has no data."""

import copy
import inspect
import json
import pickle
from typing import Any

import pytest
from starlette.requests import Request

from shoal.http.requests.plain import encoded
from shoal.serving.query import Query, item_without_data, takes_query

TWO = b"name=cod&name=d%C3%A5ce+x&empty="


def test_it_is_a_dict_of_the_last_values():
    query = Query.of(TWO)
    assert query == {"name": "dåce x", "empty": ""}
    assert (query["name"], query.get("other")) == ("dåce x", None)
    assert json.loads(json.dumps(query)) == json.loads(encoded(query)) == query


def test_it_answers_to_what_rays_code_asks_of_a_request():
    request = Query.of(TWO)
    assert request.query_params["name"] == "dåce x"
    assert request.query_params.getlist("name") == ["cod", "dåce x"]
    assert request.query_params.getlist("other") == []


@pytest.mark.parametrize("attribute", ["headers", "json", "method", "data"])
def test_what_it_lacks_is_answered_with_what_to_write(attribute):
    with pytest.raises(AttributeError, match=r"def handler\(request: Request\)"):
        getattr(Query(), attribute)


@pytest.mark.parametrize("again", [lambda q: pickle.loads(pickle.dumps(q)), copy.deepcopy])
def test_it_can_be_sent_to_other_processes(again):
    query = again(Query.of(TWO))
    assert type(query) is Query
    assert query.getlist("name") == ["cod", "dåce x"]


def test_keyword_arguments_are_the_query_of_a_call():
    query = item_without_data(signature(lambda request: 0), None, None, {"name": "cod", "n": 2})
    assert type(query) is Query
    assert (query.query_params["name"], query["n"]) == ("cod", 2)


@pytest.mark.parametrize("code", [lambda name: 0, lambda **more: 0, lambda a, b: 0])
def test_keyword_arguments_that_fit_the_code_are_no_query(code):
    assert item_without_data(signature(code), None, None, {"name": "cod"}) is None


def test_a_request_of_a_call_has_the_keyword_arguments_as_its_query():
    request = item_without_data(signature(asking), "GET", None, {"name": "d å"})
    assert request.query_params["name"] == "d å"


def asking(request: Request): ...
def signature(code):
    return inspect.signature(code, eval_str=True)


def annotated(item: int): ...
def open_to_all(item: Any): ...


@pytest.mark.parametrize(
    ("code", "query", "nothing"),
    [
        (lambda request: 0, True, True),
        (lambda request=None: 0, True, False),
        (open_to_all, True, True),
        (annotated, False, False),
        (lambda: 0, False, False),
        (lambda one, two: 0, False, False),
    ],
)
def test_code_takes_one_that_says_nothing_of_what_it_takes(code, query, nothing):
    assert takes_query(signature(code)) is query
    assert (item_without_data(signature(code), None, None) == {}) is nothing
