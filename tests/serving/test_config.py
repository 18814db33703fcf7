import copy
import json
import math
import pickle
import sys
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.options.options import OptionKeywords
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.errors import HandlerFailed, NotDurable
from shoal.replicas.contract import Blueprint, Replica, ReplicaOptions
from shoal.replicas.placements import BUILT_IN
from shoal.serving.backend_config import BACKEND_OPTIONS, BackendConfig
from shoal.serving.backend_options import NAMES, RENAMED, BackendKeywords


def cost(item: str) -> float:
    return len(item)


def place(blueprint: Blueprint) -> Replica:
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    zone: str
    slots: int = 1

    def __post_init__(self) -> None:
        self.zone.encode("ascii")
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, not {self.slots}")


class Pool:
    Options = PoolOptions

    def __call__(self, blueprint: Blueprint) -> Replica:
        raise NotImplementedError


class OpenPlacement:
    takes_open_batches = True

    def __call__(self, blueprint: Blueprint) -> Replica:
        raise NotImplementedError


HERE = f"{__name__}:cost"


def test_the_typed_keywords_and_the_table_name_the_same_options() -> None:
    assert set(NAMES) == set(BACKEND_OPTIONS)
    assert set(NAMES) | set(RENAMED) == set(BackendKeywords.__annotations__)
    assert set(OptionKeywords.__annotations__) < set(NAMES)
    for record in (ReplicaOptions, *(one.options for one in BUILT_IN.values())):
        assert {field.name for field in fields(record)} < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_of_an_option_may_be_given(name: str) -> None:
    default = BackendConfig().as_dict()[name]
    given = BackendConfig.of({name: default})
    assert given == BackendConfig()
    assert BackendConfig.of(json.loads(json.dumps(given.durable()))).given() == given.given()


def test_a_given_option_has_its_value() -> None:
    given: dict[str, Any] = {
        "num_replicas": 3,
        "placement": "process",
        "user_config": {"a": 1},
        "health_check_period_s": 1,
        "max_batches_per_replica": 100,
        "python": Path("/opt/venv/bin/python"),
        "env": {"A": "1"},
        "cpu_affinity": [[0, 1], [2]],
        "max_memory_bytes": 2**30,
        "max_batch_size": 8,
        "allowed_batch_sizes": [4, 8],
    }
    config = BackendConfig.of(given)
    assert config.num_replicas == 3
    assert config.placement == "process"
    assert config.user_config == {"a": 1}
    assert config.health_check_period_s == 1.0
    assert config.max_batches_per_replica == 100
    options = {
        "python": "/opt/venv/bin/python",
        "env": {"A": "1"},
        "cpu_affinity": ((0, 1), (2,)),
        "max_memory_bytes": 2**30,
    }
    assert config.placed == config.for_placement() == options
    assert config.batching == {"max_batch_size": 8, "allowed_batch_sizes": (4, 8)}
    assert list(config.given()) == list(given)
    assert config.as_dict() | config.given() == config.as_dict()


def test_an_old_name_stands_for_its_option() -> None:
    config = BackendConfig.of(
        {
            "max_concurrent_queries": 8,
            "batch_wait_timeout": 0.5,
            "ray_actor_options": {"num_gpus": 1},
            "placement": "ray",
        }
    )
    assert config.max_ongoing_requests == 8
    assert config.batching == {"batch_wait_timeout_s": 0.5}
    assert config.placed == {"ray_options": {"num_gpus": 1}}
    assert not set(RENAMED) & set(config.given())


def test_an_option_may_be_given_twice_alike_but_not_otherwise() -> None:
    assert BackendConfig(max_concurrent_queries=8, max_ongoing_requests=8).max_ongoing_requests == 8
    with pytest.raises(TypeError, match=r"given twice, as 8 and as 9: max_concurrent_queries is"):
        BackendConfig(max_ongoing_requests=8, max_concurrent_queries=9)


def test_records_may_be_given_as_mappings() -> None:
    config = BackendConfig(
        adaptive={"p99_s": 0.1},
        default_queue_policy={"timeout_s": 1},
        queue_policies={"2": {"timeout_s": 2}},
        priority_levels=3,
        autoscaling={"min_replicas": 2, "max_replicas": 4},
    )
    assert config.batching["adaptive"] == shoal.LatencyTarget(p99_s=0.1)
    assert config.batching["default_queue_policy"] == shoal.QueuePolicy(timeout_s=1)
    assert config.batching["queue_policies"] == {2: shoal.QueuePolicy(timeout_s=2)}
    assert config.autoscaling == AutoscalingOptions(min_replicas=2, max_replicas=4)


@pytest.mark.parametrize("least", [0, 1, 3])
def test_autoscaling_starts_with_its_least_and_not_with_none(least: int) -> None:
    config = BackendConfig(autoscaling={"min_replicas": least, "max_replicas": 4})
    assert config.num_replicas == max(1, least)


def test_a_config_is_taken_as_it_is() -> None:
    config = BackendConfig(num_replicas=2)
    assert BackendConfig.of(config) is config
    assert BackendConfig.of(None) == BackendConfig()


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"num_replicas": "auto"}, TypeError, "write autoscaling={'min_replicas': 1, 'max_repl"),
        ({"ray_actor_options": {"num_cpus": 1}}, ValueError, "^ray_actor_options is for placement"),
        ({"ray_options": {"num_cpus": 1}}, ValueError, "^ray_options is for placement"),
        ({"num_replica": 1}, TypeError, "'num_replica' is not an .* did you mean 'num_replicas'"),
        ({"batch_size": 1}, TypeError, "'batch_size' is not an .* did you mean 'max_batch_size'"),
        ({"zebra": 1}, TypeError, "'zebra' is not an option.*shoal.BackendConfig lists"),
        ({3: 1}, TypeError, "3 is not an option of a backend: an option has a name"),
        (["a"], TypeError, "config must be a mapping, not \\['a'\\]; write config="),
        ({"num_replicas": 0}, ValueError, "num_replicas must be at least 1, not 0"),
        ({"num_replicas": 10**9}, ValueError, "num_replicas must be at most 4096"),
        ({"num_replicas": "2"}, TypeError, "num_replicas must be a whole number, not '2'"),
        (
            {"placement": "wood"},
            ValueError,
            "'task', 'thread', 'process', 'ray' or 'remote', not 'wood'",
        ),
        ({"placement": 3}, TypeError, "a function that makes a Replica .*, not 3"),
        ({"placement": "a b:c"}, ValueError, "not an import path"),
        ({"health_check_period_s": 0}, ValueError, "more than 0 seconds"),
        ({"health_check_timeout_s": None}, TypeError, "a number of seconds, not None"),
        ({"autoscaling": 4}, TypeError, "autoscaling must be"),
        ({"autoscaling": {"max_replica": 4}}, TypeError, "max_replica"),
        ({"autoscaling": {"max_replicas": 2}, "num_replicas": 3}, ValueError, "max_replicas=2"),
        (
            {"fill": "open", "placement": "thread"},
            ValueError,
            "needs placement='task', 'process' or 'ray', not 'thre",
        ),
        ({"fill": "open", "bucket_by": cost}, ValueError, "do not go together"),
        ({"fill": "open", "bucket_by": "a:b"}, ValueError, "bucket_by='a:b' do not go together"),
        ({"streams": True}, TypeError, "streams=True is for fill='open'"),
        ({"streams": 1}, TypeError, "streams must be True or False"),
        ({"cancel_grace_s": float("inf")}, ValueError, "for ever"),
        ({"python": 3, "placement": "process"}, TypeError, "/opt/venv/bin/python.*not 3"),
        ({"python": "", "placement": "process"}, TypeError, "path of an interpreter"),
        ({"env": {"A": 1}, "placement": "process"}, TypeError, "'A': 1 does not"),
        ({"env": {"A=B": "1"}, "placement": "process"}, ValueError, "environment variable"),
        ({"cpu_affinity": [0, 1], "placement": "process"}, TypeError, "some CPUs for each"),
        ({"cpu_affinity": [[]], "placement": "process"}, ValueError, "some CPUs for each"),
        ({"cpu_affinity": [[-1]], "placement": "process"}, ValueError, "a CPU of cpu_affinity"),
        ({"ray_options": 3, "placement": "ray"}, TypeError, 'write ray_options={"num_gpus": 1}'),
        ({"placement_options": {1: 2}, "placement": place}, TypeError, "names for keys"),
        ({"placement_options": 3, "placement": place}, TypeError, "must be a mapping"),
        ({"batch_size_fn": "cost"}, ValueError, "batch_size_fn: 'cost' is not an import path"),
        ({"adaptive": {"p50_s": 1}}, TypeError, "adaptive has no 'p50_s'; it has p99_s"),
        ({"queue_policies": {"x": {}}}, TypeError, "level of queue_policies"),
        ({"max_ongoing_requests": 4, "batch_size_fn": cost}, ValueError, "counts requests"),
        (
            {"max_ongoing_requests": 4, "max_batch_size": 8, "allowed_batch_sizes": [8]},
            ValueError,
            r"leaves none of allowed_batch_sizes=\(8,\)",
        ),
    ],
)
def test_a_wrong_option_is_refused(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        BackendConfig.of(given)


@pytest.mark.parametrize(
    ("name", "value", "places"),
    [
        ("python", "/opt/python", {"process"}),
        ("cpu_affinity", [[0]], {"process"}),
        ("max_memory_bytes", 2**30, {"process"}),
        ("shared_memory_bytes", 2**20, {"process"}),
        ("env", {"A": "1"}, {"process", "ray"}),
        ("ray_options", {"num_gpus": 1}, {"ray"}),
        ("place_timeout_s", 5.0, {"ray"}),
        ("gpus", 0.5, {"process", "ray"}),
    ],
)
def test_an_option_without_effect_is_refused(name: str, value: Any, places: set[str]) -> None:
    for placement in BUILT_IN:
        if placement in places:
            BackendConfig.of({name: value, "placement": placement})
        else:
            those = "' or '".join(sorted(places))
            with pytest.raises(ValueError, match=f"^{name} is for placement='{those}', and has no"):
                BackendConfig.of({name: value, "placement": placement})
    BackendConfig.of({name: value, "placement": place})


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"num_cpu": 1}, ValueError, "ray_options has no 'num_cpu'; it has num_cpus, num_gpus"),
        ({"num_cpus": "2"}, TypeError, "num_cpus in ray_options must be a number, not '2'"),
        ({"num_cpus": -1}, ValueError, "num_cpus in ray_options must be a finite number"),
        ({"memory": math.inf}, ValueError, "memory in ray_options must be a finite number"),
        ({"num_gpus": 1.5}, ValueError, "num_gpus in ray_options must be a whole number"),
        ({"resources": {"GPU": 1}}, ValueError, "can't have 'GPU'; use num_gpus"),
        ({"resources": {"disk": True}}, TypeError, "'disk' in resources in ray_options must be"),
        ({"resources": 3}, TypeError, "resources in ray_options must be a mapping"),
        ({"scheduling_strategy": "SPRAED"}, ValueError, "'DEFAULT', 'SPREAD' or one of Ray's"),
        ({"scheduling_strategy": ["SPREAD"]}, TypeError, "'DEFAULT', 'SPREAD' or one of Ray's"),
        ({"accelerator_type": 4}, TypeError, "accelerator_type in ray_options must be text"),
        ({"fallback_strategy": "a"}, TypeError, "fallback_strategy in ray_options must be a list"),
        ({"placement_group_bundles": []}, ValueError, "must have at least one bundle"),
        ({"placement_group_bundles": {"CPU": 1}}, TypeError, "must be a list"),
        ({"placement_group_bundles": [{"CPU": 0}]}, ValueError, "must have a resource"),
        ({"placement_group_bundles": [{"CPU": -1}]}, ValueError, "at least 0"),
        ({"placement_group_bundles": [{"GPU": 1}]}, ValueError, "at least 1 'CPU'"),
        (
            {"placement_group_bundles": [{"CPU": 1}], "resources": {"x": 2}},
            ValueError,
            "at least 2 'x'",
        ),
        (
            {"placement_group_strategy": "PACK"},
            ValueError,
            "no effect without placement_group_bundles",
        ),
        (
            {"placement_group_bundles": [{"CPU": 1}], "placement_group_strategy": "TIGHT"},
            ValueError,
            "must be 'PACK', 'SPREAD', 'STRICT_PACK' or 'STRICT_SPREAD'",
        ),
        (
            {"placement_group_bundles": [{"CPU": 1}], "scheduling_strategy": "SPREAD"},
            ValueError,
            "can't have both",
        ),
        ({"runtime_env": "torch"}, TypeError, "runtime_env in ray_options must be a mapping"),
        ({"max_restarts": 3}, ValueError, "has no 'max_restarts'; it has .* Shoal sets the other"),
        ({"lifetime": "detached"}, ValueError, "has no 'lifetime'; it has .* Shoal sets the other"),
        ({"name": "mine"}, ValueError, "has no 'name'; it has .* Shoal sets the other"),
    ],
)
def test_wrong_ray_options_are_refused_when_they_are_given(options, error, says):
    with pytest.raises(error, match=says):
        BackendConfig.of({"placement": "ray", "ray_options": options})


def test_ray_options_that_ray_takes_are_kept() -> None:
    options = {
        "num_cpus": 0.5,
        "num_gpus": 2,
        "memory": 2**30,
        "resources": {"big_disk": 0.1},
        "accelerator_type": None,
        "label_selector": {"market-type": "spot"},
        "scheduling_strategy": "SPREAD",
        "runtime_env": {"pip": ["torch"]},
        "enable_task_events": False,
    }
    config = BackendConfig.of({"placement": "ray", "ray_options": options})
    assert config.placed == {"ray_options": options}


@pytest.mark.parametrize("gpus", [1, 8, 0.5, 0.01, 2.0])
def test_gpus_are_whole_ones_or_a_part_of_one(gpus: float) -> None:
    assert BackendConfig(placement="process", gpus=gpus).placed == {"gpus": gpus}


@pytest.mark.parametrize("gpus", [0, -1, 1.5, 0.001, math.nan, math.inf, 2000])
def test_other_numbers_of_gpus_are_refused(gpus: float) -> None:
    with pytest.raises(ValueError, match=r"gpus must be a whole number of GPUs, or a part of one"):
        BackendConfig(placement="process", gpus=gpus)


@pytest.mark.parametrize("gpus", ["1", True, [0, 1]])
def test_what_is_no_number_of_gpus_is_refused(gpus: Any) -> None:
    with pytest.raises(TypeError, match="gpus must be a number of GPUs, such as 1"):
        BackendConfig(placement="ray", gpus=gpus)


@pytest.mark.parametrize(
    ("placement", "given"),
    [
        ("process", {"env": {"CUDA_VISIBLE_DEVICES": "0"}}),
        ("ray", {"env": {"CUDA_VISIBLE_DEVICES": "0"}}),
        ("ray", {"ray_options": {"num_gpus": 1}}),
    ],
)
def test_gpus_are_said_in_one_way(placement: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"gpus=1 and .* say the same in two ways; leave"):
        BackendConfig.of({"placement": placement, "gpus": 1, **given})


def test_a_placement_gets_its_options() -> None:
    shared = {"cancel_grace_s": 2.0, "start_timeout_s": None}
    by_name = {"env": {"A": "1"}, "shared_memory_bytes": 3}
    of_process = BackendConfig.of({"placement": "process", "ray_options": {}, **shared, **by_name})
    assert of_process.for_placement() == by_name
    assert of_process.replica == ReplicaOptions(cancel_grace_s=2, start_timeout_s=None)
    own = {"zone": "a", "more": [1, {"b": None}]}
    config = BackendConfig.of({"placement": place, "placement_options": own, **by_name})
    assert config.placement_options == own
    assert config.for_placement() == {**by_name, **own}
    assert BackendConfig().for_placement() == {}


@pytest.mark.parametrize("placement", BUILT_IN)
def test_options_of_shoals_placements_are_written_by_name(placement: str) -> None:
    names = ", ".join(field.name for field in fields(BUILT_IN[placement].options))
    says = f"write the options of placement='{placement}' by name{names and f': {names}'}$"
    with pytest.raises(ValueError, match=says):
        BackendConfig.of({"placement": placement, "placement_options": {"env": {"A": "1"}}})
    needed = {"model_servers": "unix:/models"} if placement == "remote" else {}
    BackendConfig.of({"placement": placement, "placement_options": {}, **needed})


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (
            {"zone": "a", "slot": 2},
            TypeError,
            "placement_options has no 'slot'; it has zone, slots",
        ),
        ({"zone": "a", "slots": 0}, ValueError, "^placement_options: slots must be at least 1"),
        ({"zone": "ä"}, ValueError, "^placement_options: .*codec can't encode"),
        ({}, TypeError, "^placement_options: .*'zone'"),
    ],
)
def test_a_placement_checks_its_options(given, error, says):
    with pytest.raises(error, match=says):
        BackendConfig(placement=Pool(), placement_options=given)
    assert BackendConfig(placement=Pool(), placement_options={"zone": "a"})
    # What is not imported is checked where it is.
    assert BackendConfig(placement=f"{__name__}:Pool", placement_options=given)


def test_an_option_has_one_value_for_a_placement() -> None:
    with pytest.raises(ValueError, match="env is given twice, by its name and in placement_opt"):
        BackendConfig(placement=place, env={"A": "1"}, placement_options={"env": {}})
    with pytest.raises(TypeError, match="placement_options has no 'env'; it has zone"):
        BackendConfig(placement=Pool(), env={"A": "1"}, placement_options={"zone": "a"})


def test_open_batches_go_to_a_placement_that_takes_them() -> None:
    assert BackendConfig(fill="open").fill == "open"
    assert BackendConfig(fill="continuous", streams=True, placement=OpenPlacement()).streams
    assert BackendConfig(fill="continuous", streams=True, placement="process").streams
    assert BackendConfig(fill="continuous", streams=True, placement="ray").streams
    for other in (place, "thread"):
        with pytest.raises(ValueError, match="needs placement='task', 'process' or 'ray', not"):
            BackendConfig(fill="open", placement=other)


def test_a_change_changes_what_it_names() -> None:
    before = BackendConfig(num_replicas=2, max_batch_size=8, placement="process", env={"A": "1"})
    after = before.changed({"max_batch_size": 16, "max_concurrent_queries": 32})
    assert after.given() == {**before.given(), "max_batch_size": 16, "max_ongoing_requests": 32}
    assert before.batching == {"max_batch_size": 8}
    assert before.changed(BackendConfig(num_replicas=3)) == before.changed({"num_replicas": 3})
    assert before.changed({}) == before


def test_a_change_is_checked_together_with_what_stays() -> None:
    before = BackendConfig(max_batch_size=8, allowed_batch_sizes=(4, 8))
    with pytest.raises(ValueError, match="must be max_batch_size=9"):
        before.changed({"max_batch_size": 9})
    assert before.changed({"max_batch_size": 9, "allowed_batch_sizes": (9,)})
    with pytest.raises(TypeError, match="did you mean"):
        before.changed({"max_batchsize": 9})


def test_a_config_can_not_be_changed_in_place() -> None:
    config = BackendConfig(num_replicas=2, env={"A": "1"}, placement="process")
    with pytest.raises(FrozenInstanceError):
        config.num_replicas = 3  # type: ignore[misc]
    config.given()["num_replicas"] = 3
    assert config.given()["num_replicas"] == 2


def test_configs_of_equal_options_are_equal() -> None:
    assert BackendConfig(num_replicas=1) == BackendConfig()
    assert BackendConfig(num_replicas=2) != BackendConfig()
    assert BackendConfig(max_batch_size=4) != BackendConfig(max_batch_size=5)
    of_process = BackendConfig(placement="process")
    assert of_process.changed({"shared_memory_bytes": 4}) != of_process
    own = BackendConfig(placement=place, placement_options={"a": 1})
    assert own.changed({"placement_options": {"a": 2}}) != own
    assert BackendConfig() != {}
    config = BackendConfig(max_batch_size=4, placement="process")
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_a_config_shows_what_was_given() -> None:
    config = BackendConfig(num_replicas=2, batch_size_fn="models:cost")
    assert repr(config) == "BackendConfig(num_replicas=2, batch_size_fn='models:cost')"


@pytest.mark.parametrize(
    ("placement", "change"),
    [
        ("task", {"placement": "thread"}),
        ("task", {"cancel_grace_s": 2}),
        ("task", {"fill": "open"}),
        ("process", {"env": {"A": "2"}}),
        ("process", {"python": "/opt/python"}),
        ("process", {"shared_memory_bytes": 0}),
        ("ray", {"ray_options": {"num_gpus": 1}}),
        ("process", {"gpus": 1}),
        ("ray", {"gpus": 0.5}),
        (place, {"placement_options": {"zone": "b"}}),
        (place, {"shared_memory_bytes": 0}),
    ],
)
def test_what_a_running_replica_can_not_take_in_needs_new_ones(placement, change):
    before = BackendConfig(placement=placement)
    assert before.changed(change).needs_new_replicas(before)


def test_what_replicas_are_not_made_with_needs_no_new_ones() -> None:
    before = BackendConfig(placement="process")
    after = before.changed(
        {
            "num_replicas": 3,
            "user_config": {"a": 1},
            "max_batch_size": 3,
            "max_ongoing_requests": 3,
            "retries": 2,
            "start_timeout_s": 5,
            "health_check_period_s": 1,
            "max_batches_per_replica": 10,
            "env": {},
        }
    )
    assert not after.needs_new_replicas(before)


@pytest.mark.parametrize("batched", [True, False])
def test_a_queue_is_bounded_by_default(batched: bool) -> None:
    options = BackendConfig().batch_options(batched)
    assert options == {
        "max_queued_requests": 1024,
        "overload": "reject",
        "max_batch_size": 10 if batched else 1,
    }
    unbounded = BackendConfig(max_queued_requests=None, overload="wait").batch_options(batched)
    assert unbounded["max_queued_requests"] is None
    assert unbounded["overload"] == "wait"


def test_a_batcher_takes_the_options_of_a_config() -> None:
    async def handler(items: list[str]) -> list[str]:
        return items

    config = BackendConfig(
        max_batch_size=64, max_concurrent_batches=3, batch_size_fn=HERE, adaptive={"p99_s": 0.1}
    )
    options = config.batch_options(batched=True)
    assert options["batch_size_fn"] is cost
    assert "max_concurrent_batches" not in options
    shoal.Batcher(handler, max_concurrent_batches=config.slots(batched=True), **options)


def test_an_import_path_stays_one_until_it_is_needed() -> None:
    config = BackendConfig(batch_size_fn="no.such.module:cost")
    assert config.given() == config.batching == {"batch_size_fn": "no.such.module:cost"}
    assert config.slots(batched=True) == 1
    with pytest.raises(ValueError, match="there is no module 'no"):
        config.batch_options(batched=True)
    with pytest.raises(TypeError, match="batch_size_fn must be a callable"):
        BackendConfig(batch_size_fn=f"{__name__}:HERE").batch_options(batched=True)


@pytest.mark.parametrize(
    ("size", "at_once", "most", "expected_size", "expected_slots"),
    [
        (10, 1, None, 10, 1),
        (10, 3, None, 10, 3),
        (10, 3, 30, 10, 3),
        (10, 3, 29, 10, 2),
        (10, 3, 10, 10, 1),
        (10, 3, 9, 9, 1),
        (10, 1, 1, 1, 1),
        (10, 1, 1000, 10, 1),
    ],
)
def test_batches_fit_into_what_a_replica_may_have(
    size: int, at_once: int, most: int | None, expected_size: int, expected_slots: int
) -> None:
    config = BackendConfig(
        max_batch_size=size, max_concurrent_batches=at_once, max_ongoing_requests=most
    )
    assert config.batch_options(batched=True)["max_batch_size"] == expected_size
    assert config.slots(batched=True) == expected_slots
    is_odd = most is not None and most < size * at_once
    assert (config.oddity(batched=True) is not None) == is_odd


@pytest.mark.parametrize(("most", "slots"), [(None, math.inf), (30, 3), (4, 1)])
def test_a_replica_may_have_any_number_of_batches_at_once(most: int | None, slots: float) -> None:
    config = BackendConfig(
        max_batch_size=10, max_concurrent_batches=None, max_ongoing_requests=most
    )
    assert config.slots(batched=True) == slots
    assert config.given()["max_concurrent_batches"] is None
    assert config.oddity(batched=True) is None or most == 4
    one_at_a_time = BackendConfig(max_concurrent_batches=None, max_ongoing_requests=most)
    assert one_at_a_time.slots(batched=False) == (math.inf if most is None else most)


def test_the_oddity_says_what_it_comes_to() -> None:
    config = BackendConfig(max_batch_size=10, max_concurrent_batches=3, max_ongoing_requests=4)
    assert config.oddity(batched=True) == (
        "max_ongoing_requests=4 is below max_batch_size * max_concurrent_batches = 30, so a "
        "replica's batches are of at most 4, and 1 at once"
    )


def test_sizes_that_fit_are_kept() -> None:
    allowed = BackendConfig(
        max_batch_size=16, allowed_batch_sizes=(2, 4, 16), max_ongoing_requests=9
    )
    options = allowed.batch_options(batched=True)
    assert (options["allowed_batch_sizes"], options["max_batch_size"]) == ((2, 4), 4)
    assert allowed.slots(batched=True) == 1
    preferred = BackendConfig(
        max_batch_size=16, preferred_batch_sizes=(4, 12), max_ongoing_requests=9
    )
    options = preferred.batch_options(batched=True)
    assert (options["preferred_batch_sizes"], options["max_batch_size"]) == ((4,), 9)
    shoal.BatchOptions(**options)


@pytest.mark.parametrize(
    ("at_once", "most", "slots"),
    [(None, None, 1), (None, 8, 8), (3, None, 3), (3, 8, 3), (8, 3, 3)],
)
def test_code_that_takes_one_item_has_as_many_at_once_as_a_replica_may_have(at_once, most, slots):
    given = {"max_concurrent_batches": at_once, "max_ongoing_requests": most}
    config = BackendConfig.of({name: value for name, value in given.items() if value is not None})
    assert config.slots(batched=False) == slots
    assert config.batch_options(batched=False)["max_batch_size"] == 1
    assert (config.oddity(batched=False) is not None) == (at_once == 8)


def test_code_of_open_batches_takes_many_items() -> None:
    config = BackendConfig(fill="open", max_batch_size=8, max_concurrent_batches=2)
    assert config.batch_options(batched=False)["max_batch_size"] == 8
    assert config.slots(batched=False) == 2


def test_a_config_comes_back_from_json_as_it_was() -> None:
    config = BackendConfig(
        num_replicas=2,
        placement="process",
        user_config={"a": [1, None, {"b": "c"}]},
        autoscaling={"max_replicas": 3},
        cpu_affinity=[[0], [1, 2]],
        env={"A": "1"},
        max_batch_size=8,
        batch_size_fn=HERE,
        preferred_batch_sizes=(4, 8),
        queue_policies={1: shoal.QueuePolicy(timeout_s=1, batch_wait_timeout_s=None)},
        default_queue_policy=shoal.QueuePolicy(timeout_action="delay"),
    )
    kept = json.loads(json.dumps(config.durable(), allow_nan=False))
    assert BackendConfig.of(kept) == config
    assert BackendConfig.of(kept).given() == config.given()
    target = BackendConfig(adaptive=shoal.LatencyTarget(p99_s=0.2, growth=2))
    assert BackendConfig.of(json.loads(json.dumps(target.durable()))) == target
    assert BackendConfig().durable() == {}
    own = BackendConfig(
        placement="models:Pool", placement_options={"zone": "a", "slots": [1, {"b": None}]}
    )
    assert BackendConfig.of(json.loads(json.dumps(own.durable()))).given() == own.given()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bucket_by": cost}, "bucket_by=.*give its import path: bucket_by="),
        ({"placement": place}, "placement=.*import path"),
        ({"user_config": (1, 2)}, "user_config.*lists for tuples"),
        ({"user_config": {"a": {1: 2}}}, "user_config\\['a'\\].*text"),
        ({"user_config": object()}, "user_config.*of type object"),
        ({"batch_wait_timeout_s": float("inf")}, "batch_wait_timeout_s.*JSON"),
        (
            {"ray_options": {"scheduling_strategy": cost}, "placement": "ray"},
            "ray_options\\['scheduling_strategy'\\].*import path",
        ),
        (
            {"placement_options": {"x": (1,)}, "placement": "models:Pool"},
            "placement_options\\['x'\\].*lists for tuples",
        ),
    ],
)
def test_what_json_has_no_form_for_is_not_kept(given: dict[str, Any], says: str) -> None:
    with pytest.raises(NotDurable, match=says):
        BackendConfig.of(given).durable()


def test_placement_options_that_can_not_be_compared_fail_the_change_alone():
    class Odd:
        __hash__ = None

        def __eq__(self, other):
            sys.exit(3)

    before = BackendConfig(placement=lambda _: None, placement_options={"odd": Odd()})
    after = before.changed({"placement_options": {"odd": Odd()}})
    with pytest.raises(HandlerFailed, match="the placement_options raised SystemExit: 3"):
        after.needs_new_replicas(before)


def test_with_a_largest_cost_the_requests_of_a_replica_bound_those_of_a_batch():
    config = BackendConfig(max_ongoing_requests=4, max_batch_cost=100, batch_size_fn=cost)
    options = config.batch_options(batched=True)
    assert (options["max_batch_size"], options["max_batch_cost"]) == (4, 100)
