"""The options of replicas in processes. Importing them does not import the code of processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from shoal.core.options.checks import mapping, whole
from shoal.core.options.option import check_options, option, table

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


def _interpreter(name: str, value: Any) -> str:
    path: Any = str(value) if isinstance(value, Path) else value
    if not isinstance(path, str) or not path:
        raise TypeError(
            f'{name} must be the path of an interpreter, such as "/opt/venv/bin/python", '
            f"not {value!r}"
        )
    return path


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


class ProcessKeywords(TypedDict, total=False):
    """The keywords of `ProcessOptions`."""

    python: str | None
    env: Mapping[str, str]
    cpu_affinity: Sequence[Sequence[int]] | None
    max_memory_bytes: int | None
    shared_memory_bytes: int
    log_lines: int
    gpus: float | None


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
    # The number of last lines of a process's output to store.
    log_lines: int = option(200, partial(whole, least=0))
    # The number of the server's GPUs for each replica; with a fraction, several replicas share a
    # GPU. The process sees only these, through ``CUDA_VISIBLE_DEVICES``, and has
    # ``OMP_NUM_THREADS=1`` unless `env` or the server's own environment sets that.
    gpus: float | None = option(None, number_of_gpus)

    def __post_init__(self) -> None:
        check_options(self)
