"""The record of how a replica has ended."""

import pytest

from shoal.replicas.ending import Ending


@pytest.fixture
def ending():
    return Ending("embed#3")


def test_the_first_reason_stands(ending):
    ending.die("died: its node is gone", OSError("no route"))
    ending.die("was killed: its health checks failed", ValueError())
    ending.stop()
    assert str(ending.death()) == "embed#3 died: its node is gone"
    assert isinstance(ending.cause, OSError)


def test_each_death_is_an_error_of_its_own_with_the_cause(ending):
    cause = OSError("no route")
    ending.die("died", cause)
    first, second = ending.death(), ending.death()
    assert first is not second
    assert first.__cause__ is second.__cause__ is cause
    assert first.replica == "embed#3"


def test_a_stop_is_no_death_and_a_kill_after_it_is(ending):
    ending.stop()
    ending.die_unasked("exited with code 0")
    assert ending.begun.is_set()
    assert (ending.how, str(ending)) == (None, "was stopped")
    ending.die("was killed: it took too long")
    assert str(ending) == "was killed: it took too long"
