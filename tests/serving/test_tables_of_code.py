"""Tables, named tuples, mappings and sets are refused wherever the code runs."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
from conformance.replica_scenes import served
from serving.table_code import Async, Plain
from shoal.replicas.code.definition import Definition
from shoal.replicas.ray.actor import ReplicaActor

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

KINDS = {"frame": "or a list of rows", "pair": "named tuple", "dict": "a mapping", "set": "a set"}


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("placement", "code"),
    [
        ("task", Async),
        ("task", Plain),
        ("thread", Plain),
        ("process", Async),
        ("process", Plain),
    ],
)
async def test_a_table_is_refused_as_the_results_of_a_batch(placement: str, code: Any) -> None:
    async with served(code, placement=placement) as handle:
        for kind, advice in KINDS.items():
            with pytest.raises(shoal.WrongResultType, match=advice):
                await handle.call(kind)
            with pytest.raises(shoal.WrongResultType, match=advice):
                async with handle.options(method_name="steps").stream(kind) as steps:
                    await anext(steps)


@pytest.mark.parametrize("code", [Plain, Async])
def test_a_table_is_refused_as_the_results_of_a_batch_in_an_actor(code: Any) -> None:
    actor = ReplicaActor(("code", "code#1"), "trio")
    assert actor.begin(Definition(code), None)[1] is None
    for kind, advice in KINDS.items():
        answers = [actor.run(1, "__call__", ([kind], None))]
        answers += actor.steps(1, "steps", ([kind], None))
        for _, error in answers:
            assert advice in repr(error)
