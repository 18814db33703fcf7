"""Requests actors from Ray, and a placement group for each replica that has several actors.

Ray starts the actors of a program one by one. Two replicas of two actors each could therefore wait
for each other, each with half of the resources. Ray reserves the bundles of a placement group all
together or not at all.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shoal.replicas.placements import RayOptions
from shoal.replicas.ray.actor import THREADS, ReplicaActor
from shoal.replicas.ray.cluster import my_turn, ray
from shoal.replicas.ray_options import BUNDLES, GROUP_STRATEGY, with_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from shoal.core.addresses import ModelServerAddress
    from shoal.replicas.contract import Blueprint

# The options of every actor: Shoal's supervisor restarts replicas and retries work, and actors must
# not outlive the program.
_OURS: Final[Mapping[str, Any]] = {
    "max_restarts": 0,
    "max_task_retries": 0,
    "max_concurrency": THREADS,
    "lifetime": "non_detached",
}

# Options that decide where there is a place for an actor.
_ASKED: Final = (
    *("num_cpus", "num_gpus", "memory", "resources", "scheduling_strategy"),
    *(BUNDLES, GROUP_STRATEGY),
)

_MOST_SHOWN: Final = 8


# Groups that could not be removed, because Ray's head node did not answer.
_left_over: Final[list[Any]] = []


class ReplicaGroup:
    """The placement group of a replica, if it has one; Ray keeps it until it is removed."""

    def __init__(self) -> None:
        self._made: Any = None
        self._is_over = False

    def make(self, bundles: Any, strategy: str | None, name: str) -> Any:
        """Requests the group from Ray. It blocks, and the replica may end during that."""
        made = ray.util.placement_group(bundles, strategy=strategy or "PACK", name=name)
        self._made = made
        if self._is_over:
            _left_over.append(made)
            _remove_left_over()
        return made

    def nodes(self) -> set[str]:
        """Returns the nodes of its bundles. It blocks."""
        if self._made is None:
            return set()
        with my_turn():
            table: Mapping[str, Any] = ray.util.placement_group_table(self._made)
        return {*table.get("bundles_to_node_id", {}).values()}

    def end(self) -> bool:
        self._is_over = True
        return self._made is not None

    def remove(self) -> None:
        """Removes the group, which ends all actors in it. It blocks."""
        _left_over.append(self._made)
        with suppress(Exception), my_turn():
            _remove_left_over()


def _remove_left_over() -> None:
    if not ray.is_initialized():
        _left_over.clear()  # Ray removes them with their program, and a call would connect again
    while _left_over:
        group = _left_over.pop()  # other threads may append meanwhile
        try:
            ray.util.remove_placement_group(group)
        except Exception:
            _left_over.append(group)  # the next new actor tries again
            return


def actor_options(blueprint: Blueprint) -> dict[str, Any]:
    """Returns the Ray options of a replica's actor, and of its placement group."""
    options = RayOptions(**blueprint.placement_options)
    given = with_defaults(options.ray_options, options.gpus)
    if options.env:
        runtime_env = dict(given.get("runtime_env") or {})
        runtime_env["env_vars"] = {**(runtime_env.get("env_vars") or {}), **options.env}
        given["runtime_env"] = runtime_env
    # Programs may share a namespace of Ray's, where names are unique.
    name = f"{blueprint.identity.replica} {secrets.token_hex(4)}"
    return {**given, **_OURS, "name": name}


def asked_of_ray(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _ASKED if options.get(name) is not None}


class NewActor(NamedTuple):
    """An actor that was requested from Ray, and the calls of its methods."""

    handle: Any
    token: str
    ready: Future[tuple[str, ModelServerAddress]]
    lifeline: Future[None]
    ending: Future[str]


def new_actor(
    blueprint: Blueprint, group: ReplicaGroup, own: Callable[[NewActor], object]
) -> NewActor:
    """Requests an actor from Ray, and passes it to `own`. It blocks, and may be abandoned."""
    options = actor_options(blueprint)
    bundles, strategy = options.pop(BUNDLES, None), options.pop(GROUP_STRATEGY, None)
    strategies: Any = import_module("ray.util.scheduling_strategies")
    token = secrets.token_urlsafe()
    with my_turn():
        _remove_left_over()
        if bundles is not None:
            bundled = group.make(bundles, strategy, options["name"])
            options["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(
                bundled,
                placement_group_bundle_index=0,
                placement_group_capture_child_tasks=True,
            )
        actor_class: Any = ray.remote(ReplicaActor).options(**options)
        handle = actor_class.remote(blueprint.identity.replica, token)
        calls = handle.ready, handle.lifeline, handle.ending
        made = NewActor(handle, token, *[method.remote().future() for method in calls])
        own(made)
        return made


def free_resources() -> str:
    """Returns the cluster's free resources, for messages. It blocks."""
    with my_turn():
        free: Mapping[str, float] = ray.available_resources()
        there: Mapping[str, float] = ray.cluster_resources()
    shown = [
        f"{free.get(name, 0.0):g} of {number:g} {name}"
        for name, number in sorted(there.items())
        # Placement groups have resources of their own, for each of their bundles.
        if ":" not in name and "_group_" not in name and not name.endswith("memory")
    ]
    return f"these are free: {', '.join(shown[:_MOST_SHOWN])}" if shown else "none are free"
