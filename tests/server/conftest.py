"""The fixtures of all tests over HTTP, and the servers' pollers."""

import select

import pytest
from echo_app import EchoApp
from http_fixtures import *  # noqa: F403

from shoal.server.transport import TaskPoller


@pytest.fixture
def echo():
    return EchoApp()


@pytest.fixture
def task_pollers(monkeypatch):
    """Has each server watch each socket with a task; returns the pollers that were made."""
    made = []

    def make(_parking):
        made.append(TaskPoller())
        return made[-1]

    monkeypatch.setattr("shoal.server.server.new_poller", make)
    return made


@pytest.fixture(params=["epoll", "tasks"] if hasattr(select, "epoll") else ["tasks"])
def each_poller(request):
    """Has the test run with each of the two pollers."""
    if request.param == "tasks":
        request.getfixturevalue("task_pollers")
