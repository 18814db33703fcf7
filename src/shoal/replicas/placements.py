"""The placements, which create the replicas of a backend: the one list of Shoal's own.

A config is checked without importing the code that runs its replicas: the import takes long, and
may need Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, cast

from shoal.core.addresses import checked_model_servers
from shoal.core.options.option import (
    check_options,
    mapping,
    more_than_0,
    one_of,
    option,
    options_of,
    record_of,
    table,
    whole,
)
from shoal.failures.held import held
from shoal.replicas.code.definition import imported, qualified_name, split_import_path
from shoal.replicas.ray_options import check_fits_bundle, checked_ray_options, with_defaults

if TYPE_CHECKING:
    from shoal.replicas.contract import Placement


_LEAST_GPUS: Final = 0.01
_MOST_GPUS: Final = 1024


def environment(name: str, value: Any) -> dict[str, str]:
    """Checks environment variables, and copies them."""
    variables = mapping(name, value, 'env={"OMP_NUM_THREADS": "1"}')
    for key, text in variables.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(
                f'{name} must map text to text, such as {{"OMP_NUM_THREADS": "1"}}, and '
                f"{key!r}: {text!r} does not"
            )
        if not key or "=" in key or "\0" in key + text:
            raise ValueError(f"{name}: {key!r}: {text!r} can't be an environment variable")
    return variables


def _path(name: str, value: Any, *, what: str) -> str:
    path: Any = str(value) if isinstance(value, Path) else value
    if not isinstance(path, str) or not path:
        raise TypeError(f"{name} must be {what}, not {value!r}")
    return path


_interpreter: Final = partial(
    _path, what='the path of an interpreter, such as "/opt/venv/bin/python"'
)
_token_file: Final = partial(_path, what='a path, such as "/run/secrets/models"')


def _cpus(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    form = f"{name} must be some CPUs for each replica, such as [[0, 1], [2, 3]]"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{form}, not {value!r}")
    entries: list[tuple[int, ...]] = []
    for entry in cast("Iterable[object]", value):
        if isinstance(entry, str) or not isinstance(entry, Iterable):
            raise TypeError(f"{form}, not {value!r}")
        cpus = cast("Iterable[object]", entry)
        entries.append(tuple(whole(f"a CPU of {name}", cpu, least=0) for cpu in cpus))
    if not entries or not all(entries):
        raise ValueError(f"{form}, not {value!r}")
    return tuple(entries)


def number_of_gpus(name: str, value: Any) -> float:
    """Accepts a whole number of GPUs, or a part of one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of GPUs, such as 1 or 0.5, not {value!r}")
    if not (_LEAST_GPUS <= value < 1 or (1 <= value <= _MOST_GPUS and value == int(value))):
        raise ValueError(
            f"{name} must be a whole number of GPUs, or a part of one from {_LEAST_GPUS} to 1, "
            f"not {value!r}"
        )
    return value if value < 1 else int(value)


class PlacementKeywords(TypedDict, total=False):
    python: str | None
    env: Mapping[str, str]
    cpu_affinity: Sequence[Sequence[int]] | None
    max_memory_bytes: int | None
    shared_memory_bytes: int
    gpus: float | None
    ray_options: Mapping[str, Any]
    place_timeout_s: float | None
    model_servers: Sequence[str] | str | None
    model_server_token_file: str | None


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    # The interpreter, such as a virtual environment's; the current one by default. It needs Shoal,
    # without extras.
    python: str | None = option(None, _interpreter)
    env: Mapping[str, str] = table(environment)
    # The CPUs of each replica: the first replica gets the first entry. After the last entry it
    # starts over.
    cpu_affinity: Sequence[Sequence[int]] | None = option(None, _cpus)
    # A process with more resident memory is replaced after its current batch. It is killed if that
    # batch takes it beyond twice this limit.
    max_memory_bytes: int | None = option(None, partial(whole, least=1))
    # For large arrays and bytes, in each direction; 0 for none. Only the used part takes memory.
    shared_memory_bytes: int = option(64 * 2**20, partial(whole, least=0))
    # The number of the server's GPUs for each replica; with a fraction, several replicas share a
    # GPU. The process sees only these, through ``CUDA_VISIBLE_DEVICES``, and has
    # ``OMP_NUM_THREADS=1`` unless `env` or the server's own environment sets that.
    gpus: float | None = option(None, number_of_gpus)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    env: Mapping[str, str] = table(environment)
    # The Ray options of the actor, such as ``num_cpus`` and ``resources``.
    ray_options: Mapping[str, Any] = table(checked_ray_options)
    # Ray's ``num_gpus``: how many GPUs each replica has, or which fraction of one.
    gpus: float | None = option(None, number_of_gpus)
    # How long Ray may take to place an actor, for example while the cluster adds a node; None for
    # no limit. ``start_timeout_s`` begins after that.
    place_timeout_s: float | None = option(600.0, more_than_0, may_be_none=True)

    def __post_init__(self) -> None:
        check_options(self)
        check_fits_bundle(with_defaults(self.ray_options, self.gpus))


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    # The addresses of the model servers: one replica for each. A host's name stands for all of its
    # addresses, and "file:/PATH" for those in a file, one a line; both are read again.
    model_servers: Sequence[str] | str | None = option(
        None, checked_model_servers, may_be_none=True
    )
    # The file with the token that they require; none is needed at a UNIX socket.
    model_server_token_file: str | None = option(None, _token_file, may_be_none=True)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class NoOptions:
    """The options of a placement without options."""


class BuiltIn(NamedTuple):
    """A placement of Shoal's own; `path` is the import path of its replica class."""

    path: str
    options: type[NoOptions | ProcessOptions | RayOptions | RemoteOptions] = NoOptions
    takes_open_batches: bool = False


BUILT_IN: Final[Mapping[str, BuiltIn]] = {
    "task": BuiltIn("shoal.replicas.local.task:TaskReplica", takes_open_batches=True),
    "thread": BuiltIn("shoal.replicas.local.thread:ThreadReplica"),
    "process": BuiltIn(
        "shoal.replicas.process.replica:ProcessReplica", ProcessOptions, takes_open_batches=True
    ),
    "ray": BuiltIn("shoal.replicas.ray.replica:RayReplica", RayOptions, takes_open_batches=True),
    "remote": BuiltIn("shoal.replicas.remote.replica:RemoteReplica", RemoteOptions),
}


def checked_placement(placement: Any) -> Any:
    """Checks a placement: a known name, an import path, or a callable."""
    if callable(placement):
        return placement
    if not isinstance(placement, str):
        raise _not_callable(placement)
    if ":" in placement:
        split_import_path(placement)
        return placement
    return one_of("placement", placement, tuple(BUILT_IN))


def takes_open_batches(placement: Any) -> bool:
    known = BUILT_IN.get(placement) if isinstance(placement, str) else placement
    return bool(getattr(known, "takes_open_batches", False))


def check_placement_options(
    placement: str | Placement,
    by_name: Mapping[str, Any],
    own: Mapping[str, Any],
    as_given: Mapping[str, str],
) -> None:
    """Refuses options without effect. A placement given by its path is not imported for this."""
    # `by_name` has the options of Shoal's placements that differ from their defaults.
    twice = by_name.keys() & own.keys()
    if twice:
        raise ValueError(f"{min(twice)} is given twice, by its name and in placement_options")
    if not isinstance(placement, str):
        placement_of(placement, {**by_name, **own})
        return
    if placement not in BUILT_IN:
        return
    taken = options_of(BUILT_IN[placement].options)
    for name in by_name:
        if name not in taken:
            places = [place for place, one in BUILT_IN.items() if name in options_of(one.options)]
            raise ValueError(
                f"{as_given[name]} is for placement={' or '.join(map(repr, places))}, and has no "
                f"effect with placement={placement!r}; leave it out"
            )
    BUILT_IN[placement].options(**by_name)  # checks that they fit together
    if own:
        names = f": {', '.join(taken)}" if taken else ""
        raise ValueError(
            "placement_options is for a placement of your own; write the options of "
            f"placement={placement!r} by name{names}"
        )


def placement_of(placement: Any, options: Mapping[str, Any] | None = None) -> Placement:
    """Loads a placement by name or path, and checks `options` against its ``Options``."""
    loaded = checked_placement(placement)
    if isinstance(loaded, str):
        loaded = imported(BUILT_IN[loaded].path if loaded in BUILT_IN else loaded)
    if not callable(loaded):
        raise _not_callable(placement)
    record: Any = getattr(loaded, "Options", None)
    if record is not None and options is not None:
        if not isinstance(record, type) or not is_dataclass(record):
            raise TypeError(f"{placement_name(loaded)}.Options must be a dataclass, not {record!r}")
        held(record_of, "the placement's Options")(record, "placement_options", options)
    return cast("Placement", loaded)


def placement_name(placement: Any) -> str:
    return placement if isinstance(placement, str) else qualified_name(placement)


def _not_callable(placement: Any) -> TypeError:
    *names, last = map(repr, BUILT_IN)
    return TypeError(
        f"placement must be {', '.join(names)} or {last}, or a function that makes a Replica of a "
        f"Blueprint, not {placement!r}"
    )
