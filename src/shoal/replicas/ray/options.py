"""The options of replicas in Ray actors. Importing them does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `get_type_hints` needs it
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from shoal.core.options.checks import more_than_0, named_values
from shoal.core.options.option import check_options, option, table
from shoal.replicas.process.options import environment, number_of_gpus


class RayKeywords(TypedDict, total=False):
    """The keywords of `RayOptions`, except those that processes have too."""

    ray_options: Mapping[str, Any]
    place_timeout_s: float | None


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    env: Mapping[str, str] = table(environment)
    # The Ray options of the actor, such as ``num_cpus`` and ``resources``.
    ray_options: Mapping[str, Any] = table(partial(named_values, example="num_gpus"))
    # Ray's ``num_gpus``: how many GPUs each replica has, or which fraction of one.
    gpus: float | None = option(None, number_of_gpus)
    # How long Ray may take to place an actor, for example while the cluster adds a node; None for
    # no limit. ``start_timeout_s`` begins after that.
    place_timeout_s: float | None = option(600.0, more_than_0, may_be_none=True)

    def __post_init__(self) -> None:
        check_options(self)
