"""Reading a client's messages: nothing but a message or a violation comes out of any text."""

import json

import pytest
from fuzzing import AT_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from shoal.http.websocket.messages import (
    Cancel,
    Credit,
    NewRequest,
    Violation,
    quickly_read,
    read_binary,
    read_text,
)

pytestmark = pytest.mark.slow

MOST = 1000

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
names = st.sampled_from(["id", "item", "cancel", "credit", "priority", "timeout_s", "x"])
ids = st.sampled_from([1, 0, "a", "a.b:c-d_e", "", "\n", -1, 2**60, True, None])
objects = st.dictionaries(names, values | st.integers(1, 9)).map(json.dumps)
requests = st.builds(
    lambda name, item, more: json.dumps({"id": name, "item": item, **more}),
    ids,
    values,
    st.dictionaries(names, values, max_size=1),
)
pasted = st.lists(
    st.sampled_from(['{"id":1,"item":', "1", "}", ',"cancel":true', '"', "[", ',"id":2', "\\u0069"])
).map("".join)
texts = (objects | requests | pasted | st.text(max_size=60)).map(
    lambda text: text.encode("utf-8", "replace")
)


def result(read, *args):
    """A message; the code of a violation."""
    try:
        return read(*args)
    except Violation as violation:
        return violation.code


def check(text):
    message = result(read_text, text, MOST)
    assert isinstance(message, NewRequest | Cancel | Credit) or message in (1007, 1008, 1009)
    binary = result(read_binary, text)
    assert isinstance(binary, NewRequest) or binary in (1003, 1007, 1008, 1009)
    quick = quickly_read(text)
    if quick is None:
        return
    try:
        item = json.loads(quick.body, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        return
    # What was taken out is JSON, so the message is what it seems to be.
    if isinstance(message, NewRequest) and message.refused is not None:
        assert message.id == quick.id  # such as a number that no float can have
    elif isinstance(message, NewRequest):
        assert message._replace(body=b"") == quick._replace(body=b"")
        assert json.loads(message.body) == item or item != item
    else:
        assert message == 1007


@given(texts)
def test_any_text_is_a_message_or_a_violation(text):
    check(text)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@AT_LENGTH
@given(texts)
def test_any_text_is_a_message_or_a_violation_at_length(text):
    check(text)
