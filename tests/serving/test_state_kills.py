"""A process that changes a state file is killed at any moment; what it acknowledged is there.

Each child applies one endless stream of changes, from where the file is, and says so after each.
Children are forked from one process that has imported all it takes, so that a kill is cheap, and
falls into the opening of the file as often as into its changes.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.traffic import Shadow
from shoal.serving.state_file import StateFile
from shoal.serving.state_records import (
    BackendRecord,
    Change,
    DeclaredState,
    Deleted,
    EndpointRecord,
)

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

KILLS = 40
MOST_ACKNOWLEDGED = 8
LONGEST_WAIT_S = 0.004


def change(number: int) -> list[Change]:
    """The change of that number: mostly one, at times several that belong together."""
    rng = random.Random(f"change {number}")
    return [one_change(rng) for _ in range(rng.choice((1, 1, 1, 3)))]


def one_change(rng: random.Random) -> Change:
    name = f"n{rng.randrange(6)}"
    kind = rng.random()
    if kind < 0.5:
        # Of some pages at times, so that pages come and go, and a change is more than one write.
        text = "x" * int(10 ** rng.uniform(0, 4.3))
        return BackendRecord(
            tag=name,
            import_path="models:M",
            init_args=(text,),
            config={"user_config": rng.random()},
        )
    if kind < 0.7:
        share = rng.random()
        return EndpointRecord(
            name=name,
            route=f"/{name}",
            methods=("GET", "POST"),
            traffic={"a": share, "b": 1 - share},
            shadows={"c": Shadow(rng.random(), compare="models:alike")},
        )
    return Deleted("backend", name) if kind < 0.9 else Deleted("endpoint", name)


def after(state: DeclaredState, changes: list[Change]) -> DeclaredState:
    backends, endpoints = dict(state.backends), dict(state.endpoints)
    for one in changes:
        match one:
            case BackendRecord():
                backends[one.tag] = one
            case EndpointRecord():
                endpoints[one.name] = one
            case Deleted(kind="backend"):
                backends.pop(one.name, None)
            case Deleted(kind="endpoint"):
                endpoints.pop(one.name, None)
    return replace(state, backends=backends, endpoints=endpoints)


def fork_children() -> None:
    """Reads lines of a path and a number; forks a child for each, and says its process id."""
    for line in sys.stdin:
        path, number = line.rsplit(" ", 1)
        child = os.fork()
        if child == 0:
            make_changes(Path(path), int(number))
        # Past Python's buffers, since the child writes into the same pipe.
        os.write(1, b"child %d\n" % child)
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


def make_changes(path: Path, number: int) -> None:
    state = StateFile.open(path)
    while True:
        state.apply(*change(number))
        os.write(1, b"applied %d\n" % number)
        number += 1


class Children:
    """The process that forks children, and what they said."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # with the child that it may have
        self._process.communicate()

    def killed(self, path: Path, number: int, after: int, wait_s: float) -> int:
        """Runs one child, kills it, and returns how many changes it acknowledged."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path} {number}\n")
        self._process.stdin.flush()
        acknowledged, child, is_killed = 0, None, False
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "ended":
                break
            if word == "child":
                child = int(rest)
            else:
                assert int(rest) == number + acknowledged
                acknowledged += 1
            if acknowledged >= after and child is not None and not is_killed:
                time.sleep(wait_s)
                os.kill(child, signal.SIGKILL)
                is_killed = True
        assert acknowledged >= after
        return acknowledged


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


def test_a_kill_at_any_moment_leaves_what_was_acknowledged(tmp_path, children):
    rng = random.Random(0)
    path = tmp_path / "state.db"
    number, state = 0, DeclaredState()
    for _ in range(KILLS):
        acknowledged = children.killed(
            path, number, rng.randint(0, MOST_ACKNOWLEDGED), rng.uniform(0, LONGEST_WAIT_S)
        )
        for _ in range(acknowledged):
            state = after(state, change(number))
            number += 1
        reopened = StateFile.open(path)
        found = reopened.load()
        reopened.close()
        if found != state:  # then the change that was under way is there too
            state = after(state, change(number))
            number += 1
        assert found == state


if __name__ == "__main__":
    fork_children()
