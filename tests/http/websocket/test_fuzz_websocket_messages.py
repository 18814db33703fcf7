"""Reading a client's messages: nothing but a message or a violation comes out of any text."""

import json

import pytest
from fuzzing import AT_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from shoal.http.websocket.messages import (
    Cancel,
    NewRequest,
    Violation,
    read,
    read_whole,
)

pytestmark = pytest.mark.slow

MOST = 1000

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
names = st.sampled_from(["id", "item", "cancel", "priority", "timeout_s", "x"])
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
    whole = result(read_whole, text, MOST)
    assert isinstance(whole, NewRequest | Cancel) or whole in (1007, 1008, 1009)
    binary = result(read, None, text, MOST, MOST)
    assert isinstance(binary, NewRequest) or binary in (1003, 1007, 1008, 1009)
    message = result(read, text.decode("utf-8", "replace"), None, MOST, MOST)
    if not isinstance(message, NewRequest) or message.unparsed is None:
        assert message == whole
        return
    try:
        item = json.loads(message.body, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        return
    # The item is JSON, so the message is what it seems to be.
    if isinstance(whole, NewRequest) and whole.refused is not None:
        assert whole.id == message.id  # such as a number that no float can have
    elif isinstance(whole, NewRequest):
        assert whole._replace(body=b"") == message._replace(body=b"", unparsed=None)
        assert json.loads(whole.body) == item or item != item
    else:
        assert whole == 1007


@given(texts)
def test_any_text_is_a_message_or_a_violation(text):
    check(text)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@AT_LENGTH
@given(texts)
def test_any_text_is_a_message_or_a_violation_at_length(text):
    check(text)
