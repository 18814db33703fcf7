"""Exceptions that cross processes: as what they are, or as text that names them."""

import pickle
import sys
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response, StreamingResponse

from shoal.errors import HandlerFailed
from shoal.replicas.process.wire.errors import (
    as_data,
    check_may_leave,
    slots_as_data,
    slots_as_exceptions,
)


class ByKeyword(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class OfTwo(Exception):
    def __init__(self, user: str, item: str) -> None:
        super().__init__(f"{user} has no {item}")
        self.user, self.item = user, item


class Decorated(Exception):
    """Its text would be decorated twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")
        self.name = name


class WithSlots(Exception):
    __slots__ = ("code",)

    def __init__(self, *, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class Locked(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.lock = threading.Lock()


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Unnoted(Exception):
    def add_note(self, note: str) -> None:
        raise SystemExit(note)


class Group(ExceptionGroup[Exception]):
    tag = ""


def crossed(error: BaseException) -> Exception:
    data = pickle.loads(pickle.dumps(as_data(error), 5))
    found: Exception = data.as_exception("the process")
    return found


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def status_error() -> Exception:
    request = httpx.Request("GET", "http://model/x")
    response = httpx.Response(418, request=request, headers={"a": "b"}, text="tea")
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        ByKeyword(code=3),
        OfTwo("ann", "book"),
        Decorated("book"),
        HTTPException(status_code=418, detail="tea", headers={"a": "b"}),
        HTTPException(status_code=418, detail={"kind": "tea"}),
        HTTPException(418, detail="tea"),
        OSError(2, "missing", "file"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
    ],
)
def test_an_error_keeps_its_class_text_and_attributes(error: Exception) -> None:
    error.add_note("noted")
    again = crossed(error)
    assert (type(again), str(again)) == (type(error), str(error))
    assert vars(again) == vars(error)
    assert again.args == error.args


@pytest.mark.parametrize("error", [Frozen(3), Unnoted()])
def test_an_error_that_takes_no_attributes_crosses_with_its_cause(error: Exception) -> None:
    again = crossed(raised(error, KeyError(1)))
    assert (type(again), vars(again)) == (type(error), vars(error))
    assert repr(again.__cause__) == "KeyError(1)"


def test_attributes_in_slots_cross() -> None:
    again: Any = crossed(WithSlots(code=5))
    assert (type(again), again.code) == (WithSlots, 5)


def test_an_error_of_a_client_keeps_its_response() -> None:
    again: Any = crossed(status_error())
    assert type(again) is httpx.HTTPStatusError
    response = again.response
    assert (response.status_code, response.text, response.headers["a"]) == (418, "tea", "b")
    assert again.request.url == "http://model/x"


def test_the_members_of_a_group_cross_one_by_one() -> None:
    group = Group(
        "several",
        [
            ByKeyword(code=1),
            ExceptionGroup("inner", [OfTwo("ann", "book"), Locked(code=2)]),
            HTTPException(status_code=404),
        ],
    )
    group.tag = "tagged"
    again: Any = crossed(group)
    assert (type(again), again.message, again.tag) == (Group, "several", "tagged")
    first, inner, last = again.exceptions
    assert (type(first), first.code) == (ByKeyword, 1)
    assert type(inner) is ExceptionGroup
    assert (type(inner.exceptions[0]), inner.exceptions[0].item) == (OfTwo, "book")
    assert type(inner.exceptions[1]) is HandlerFailed
    assert str(inner.exceptions[1]) == f"the handler raised {__name__}.Locked: code 2"
    assert (type(last), last.status_code, last.detail) == (HTTPException, 404, "Not Found")


def test_causes_and_notes_cross() -> None:
    cause = raised(ByKeyword(code=1), ValueError("root"))
    cause.add_note("of the cause")
    error = raised(OfTwo("ann", "book"), cause)
    error.add_note("of the error")
    again: Any = crossed(error)
    assert (type(again), type(again.__cause__)) == (OfTwo, ByKeyword)
    assert again.__cause__.__notes__ == ["of the cause"]
    assert str(again.__cause__.__cause__) == "root"
    assert again.__notes__[0] == "of the error"
    assert "ValueError: root" in again.__notes__[1]  # the traceback there


def test_the_error_that_was_being_handled_crosses_unless_it_is_suppressed() -> None:
    error = ValueError("second")
    error.__context__ = ByKeyword(code=1)
    again = crossed(error)
    assert isinstance(again.__context__, ByKeyword)
    error.__suppress_context__ = True
    assert crossed(error).__context__ is None


def test_errors_that_are_their_own_cause_end() -> None:
    error, other = ValueError(1), ValueError(2)
    error.__cause__, other.__cause__ = other, error
    assert str(crossed(error)) == "1"


def test_errors_in_slots_cross_in_the_same_way() -> None:
    [slot, value] = slots_as_exceptions(slots_as_data([ByKeyword(code=4), 5]), "the process")
    assert (type(slot), slot.code, value) == (ByKeyword, 4, 5)


@pytest.mark.parametrize("response", [StreamingResponse(iter(["a"])), FileResponse("a.txt")])
def test_a_response_that_the_server_must_send_can_not_leave_its_process(response: Any) -> None:
    with pytest.raises(TypeError, match=r"can't leave its process; .* placement='task'"):
        check_may_leave([1, response])
    check_may_leave([1, Response("a")])


def test_results_may_leave_while_another_thread_imports_starlette(monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette.responses", ModuleType("starlette.responses"))
    check_may_leave([1, "two"])
