"""Open and continuous batches on Ray: all that holds in processes, and what only actors have."""

import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

from batching.callers import outcome
from event_loops import one_loop_for_the_file as one_loop_for_the_file
from replicas import test_process_open
from replicas.playing import playing
from replicas.ray_cluster import MARKS, SMALL, cluster_of
from replicas.test_process_open import CODE, calling
from replicas.test_process_open import folder as folder
from replicas.test_process_open import own_folder as own_folder
from replicas.test_process_open import played as played
from replicas.test_process_open import shared_path as shared_path
from serving import test_open_processes
from shoal.batching.current import Identity
from shoal.errors import ReplicaDied
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, Replica, ReplicaOptions

ray = pytest.importorskip("ray")

from shoal.replicas.ray.replica import RayReplica  # noqa: E402 - it needs Ray

pytestmark = MARKS

# The tests of processes, with replicas that the fixtures below make.
for file in (test_process_open, test_open_processes):
    globals().update({name: v for name, v in vars(file).items() if name.startswith("test_")})


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Generator[Any]:
    with cluster_of({"num_cpus": 2}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def replica_of(cluster: Any) -> Callable[..., Replica]:
    def on_ray(folder: str, cancel_grace_s: float = 5.0) -> Replica:
        return RayReplica(
            Blueprint(
                identity=Identity("model", "model#0"),
                definition=Definition(CODE, (folder,)),
                options=ReplicaOptions(cancel_grace_s=cancel_grace_s),
                placement_options={"ray_options": SMALL},
            )
        )

    return on_ray


@pytest.fixture(scope="module")
def where() -> str:
    return "model#0"


@pytest.fixture
def placed() -> dict[str, Any]:
    return {"placement": "ray", "ray_options": SMALL}


class OfThisScript:
    """Like a class of the main script: no other process can import it."""

    number = 0


OfThisScript.__module__ = "__main__"


async def test_classes_of_the_main_script_are_items_and_results(played, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "OfThisScript", OfThisScript, raising=False)
    async with calling(played) as (call, _):
        item = OfThisScript()
        item.number = 7
        answer = await call(item)
        assert type(answer) is OfThisScript
        assert answer.number == 7


@pytest.mark.one_loop
async def test_code_that_wants_to_end_its_process_ends_its_replica(replica_of, own_folder):
    async with playing(replica_of(own_folder.path), stop=False) as played:
        async with calling(played, "exits") as (call, _):
            error = await outcome(call("now"))
            assert isinstance(error, ReplicaDied)
            await played.ended.wait()
        assert "its code raised SystemExit(3)" in str(played.error)
