"""The options of replicas in Ray actors; to know them takes no Ray."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `get_type_hints` needs it
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from shoal.core.options.checks import named_values
from shoal.core.options.option import check_options, table
from shoal.replicas.process.options import environment


class RayKeywords(TypedDict, total=False):
    """The keywords of `RayOptions`, but for ``env``, which processes have too."""

    ray_options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """The options of ``placement="ray"``.

    Attributes:
        env: Environment variables of the actor; they override this process's own.
        ray_options: The Ray options of the actor: ``num_cpus``, ``num_gpus``, ``resources``,
            ``runtime_env``, ``scheduling_strategy`` and so on.
    """

    env: Mapping[str, str] = table(environment)
    ray_options: Mapping[str, Any] = table(partial(named_values, example="num_gpus"))

    def __post_init__(self) -> None:
        check_options(self)
