"""The options of a handle's call: one record, and what is derived from it."""

import dataclasses
from typing import Any, get_type_hints

import pytest

from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS, HandleKeywords, HandleOptions
from shoal.serving.clients.handles import ChildHandle

OTHERS: dict[str, Any] = {
    "method_name": "embed",
    "shard_key": "user-7",
    "model": "en-fr",
    "http_method": "PUT",
    "http_headers": {"x-a": "b"},
    "timeout_s": 2.5,
    "priority": 3,
}


def test_the_keywords_for_type_checkers_are_the_fields():
    fields = get_type_hints(HandleOptions)
    assert get_type_hints(HandleKeywords) == {name: kind | None for name, kind in fields.items()}


def test_every_field_has_a_check_and_a_line_of_its_own_in_the_docstring():
    names = [field.name for field in dataclasses.fields(HandleOptions)]
    assert list(HANDLE_OPTIONS) == names == list(OTHERS)
    documented = (HandleOptions.__doc__ or "").split("Attributes:")[1].strip().splitlines()
    assert [line.split(":")[0].strip() for line in documented] == names


@pytest.mark.parametrize("name", OTHERS)
def test_only_options_that_were_changed_are_written(name):
    options = HandleOptions().with_changes({name: OTHERS[name]})
    assert options == HandleOptions(**{name: OTHERS[name]})
    assert options.changed() == {name: OTHERS[name]}


@pytest.mark.parametrize("name", OTHERS)
def test_none_leaves_an_option_as_it_is(name):
    assert HandleOptions(**OTHERS).with_changes({name: None}) == HandleOptions(**OTHERS)


def test_a_call_from_a_process_carries_every_option():
    channel: Any = None
    handle = ChildHandle("e", channel).options(**OTHERS)
    call = handle.call_out((1,), {"k": 2}, stream=True)
    assert (call.endpoint, call.args, call.kwargs, call.stream) == ("e", (1,), {"k": 2}, True)
    assert call.options == HandleOptions(**OTHERS)
