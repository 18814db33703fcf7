"""Tables, named tuples, mappings and sets are refused wherever the code runs."""

from typing import Any

import pytest

import shoal
from conformance.replica_scenes import served
from serving.table_code import KINDS, Async, Plain

pytestmark = pytest.mark.real_time


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("placement", "code"),
    [("task", Async), ("task", Plain), ("thread", Plain), ("process", Async), ("process", Plain)],
)
async def test_a_table_is_refused_as_the_results_of_a_batch(placement: str, code: Any) -> None:
    async with served(code, placement=placement) as handle:
        for kind, advice in KINDS.items():
            with pytest.raises(shoal.errors.WrongResultType, match=advice):
                await handle.call(kind)
            with pytest.raises(shoal.errors.WrongResultType, match=advice):
                async with handle.options(method_name="steps").stream(kind) as steps:
                    await anext(steps)
