"""Suggestions for unknown option names: similar names, other systems' names, or none."""

from dataclasses import fields
from typing import Any

import pytest

import shoal
from shoal.core.options.names import OF_PEERS, nearest, suggested
from shoal.core.options.options import BatchOptions
from shoal.serving.backend_config import BackendConfig
from shoal.serving.backend_options import NAMES

OF_BATCHER = [field.name for field in fields(BatchOptions)]


@pytest.mark.parametrize("name", ["method", "xyzzy", "tints", "route", "max_latency", "timeout_fn"])
def test_what_is_like_no_other_is_not_guessed(name: str) -> None:
    assert suggested(name, NAMES) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_replica", "num_replicas"),
        ("replicas", "num_replicas"),
        ("wait_timeout", "batch_wait_timeout_s"),
        ("batch_max_size", "max_batch_size"),
        ("max_queue", "max_queued_requests"),
        ("preferred_batch_size", "preferred_batch_sizes"),
        ("memory", "max_memory_bytes"),
        ("batch_wait_timeout", "batch_wait_timeout_s"),
        ("concurrent_batches", "max_concurrent_batches"),
        ("batch_size_func", "batch_size_fn"),
        ("max_bach_size", "max_batch_size"),
        ("Max_Batch_Size", "max_batch_size"),
    ],
)
def test_a_slip_or_a_part_of_a_name_is(name: str, meant: str) -> None:
    assert nearest(name, NAMES) == meant


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("batch_timeout", "batch_wait_timeout_s, in seconds"),
        ("max_wait_time", "batch_wait_timeout_s, in seconds: 10 milliseconds are 0.01"),
        ("max_queue_delay_microseconds", "batch_wait_timeout_s, in seconds: 100 microseconds are"),
        ("max_latency_ms", "request_timeout_s, in seconds, to give up, or adaptive="),
        ("max_enqueued_batches", "max_queued_requests, in requests, not in batches"),
        ("num_batch_threads", "max_concurrent_batches, "),
        ("timeout", "batch_wait_timeout_s, the wait for more, handler_timeout_s, of a batch"),
    ],
)
def test_a_peers_name_is_answered_with_ours_and_its_unit(name: str, ours: str) -> None:
    for known in (OF_BATCHER, NAMES):
        assert str(suggested(name, known)).startswith(f"write {ours}")


def test_a_peers_name_is_told_where_it_is_written() -> None:
    async def handler(items: list[int]) -> list[int]:
        return items

    given: dict[str, Any] = {"batch_timeout": 0.1}
    for refused in (
        lambda: shoal.batch(handler, **given),
        lambda: shoal.Batcher(handler, **given),
        lambda: BackendConfig(**given),
        lambda: shoal.App().endpoint("/", **given),
    ):
        with pytest.raises(TypeError, match=r"'batch_timeout' is not .*; write batch_wait"):
            refused()


def test_what_a_batcher_lacks_is_not_suggested_for_one() -> None:
    assert suggested("workers", OF_BATCHER) is None
    assert suggested("workers", NAMES) == "write num_replicas, with placement='process'"


def test_all_that_is_suggested_is_there() -> None:
    assert {ours for ours, _ in OF_PEERS.values()} <= set(NAMES)
    assert not set(OF_PEERS) & set(NAMES)


@pytest.mark.parametrize("given", [{"method": "POST"}, {"metods": ["POST"]}])
def test_an_endpoints_own_arguments_are_suggested_too(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"did you mean 'methods'"):
        shoal.App().endpoint("/", **given)


async def test_middleware_is_meant_under_both_names() -> None:
    with pytest.raises(TypeError, match=r"'middleware' is not an option of http; did you mean"):
        async with shoal.start(http={"middleware": []}):
            pass
    for name, says in (("middlewares", "did you mean"), ("xyzzy", "there are allowed_hosts")):
        given: dict[str, Any] = {name: []}
        with pytest.raises(TypeError, match=f"'{name}' is not an option of shoal.App; {says}"):
            shoal.App(**given)
