"""Errors travel: through `copy`, through `pickle`, and so through pools of processes."""

import copy
import inspect
import pickle
from typing import Any

import pytest

from shoal import errors

MESSAGE = "embed was given 3 items and gave back 2 results"
OWN_ARGUMENTS: dict[type[Exception], dict[str, Any]] = {
    errors.ReplicaDied: {
        "replica": "embed#3",
        "exit_code": 3,
        "signal": "SIGKILL",
        "last_lines": "out of memory\n",
    },
    errors.HttpProblem: {"status": 422, "kind": "invalid-item", "members": {"status": 422}},
    errors.LifespanFailed: {"details": "Traceback"},
    errors.ReplicaNotStarted: {"needs_restart": True},
    errors.RetryLater: {"after_s": 2.5},
    errors.WrongBatchSize: {"expected": 3, "got": 2},
}
MAKES_ITS_MESSAGE = (errors.RetryLater,)
PUBLIC = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.ShoalError) and kind.__module__ == errors.__name__
]


def unpickled(error: Exception) -> Exception:
    found = pickle.loads(pickle.dumps(error))
    assert isinstance(found, Exception)
    return found


def unpickled_by_the_oldest_protocol(error: Exception) -> Exception:
    found = pickle.loads(pickle.dumps(error, 0))
    assert isinstance(found, Exception)
    return found


def made(kind: type[Exception]) -> Exception:
    message = () if kind in MAKES_ITS_MESSAGE else (MESSAGE,)
    error = kind(*message, **OWN_ARGUMENTS.get(kind, {}))
    error.add_note("in the second batch")
    return error


def test_each_argument_of_an_error_is_tried():
    for kind in PUBLIC:
        takes = inspect.signature(kind).parameters if "__init__" in vars(kind) else {}
        assert set(takes) - {"message"} == set(OWN_ARGUMENTS.get(kind, {})), kind


@pytest.mark.parametrize(
    "travel", [copy.copy, copy.deepcopy, unpickled, unpickled_by_the_oldest_protocol]
)
@pytest.mark.parametrize("kind", PUBLIC)
def test_every_public_error_copies_and_pickles_whole(kind, travel):
    error = made(kind)
    twin = travel(error)
    assert type(twin) is kind
    assert twin is not error
    assert twin.args == error.args
    assert str(twin) == str(error)
    assert kind in MAKES_ITS_MESSAGE or error.args == (MESSAGE,)
    assert vars(twin) == vars(error)
    twin.add_note("of the twin alone")
    assert error.__notes__ == ["in the second batch"]


class Busy(errors.Overloaded):
    """A user's own, whose constructor takes something else than its message."""

    def __init__(self, queue: str, length: int) -> None:
        super().__init__(f"{queue} is {length} long")
        self.queue = queue


def test_a_subclass_of_a_public_error_does_so_too():
    twin = unpickled(Busy("embed", 7))
    assert isinstance(twin, Busy)
    assert (str(twin), twin.queue) == ("embed is 7 long", "embed")
