"""The options of replicas in processes; to know them takes no import of what runs processes."""

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
    """Checks environment variables, and copies them.

    Raises:
        TypeError: They are not a mapping of text to text.
        ValueError: One can't be an environment variable.
    """
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
    """Checks how many GPUs a replica has: a whole number, or a part of one.

    Raises:
        TypeError: It is not a number.
        ValueError: It is neither.
    """
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
    """The options of ``placement="process"``.

    Attributes:
        python: The interpreter, such as that of a virtual environment; the current one by default.
            Shoal must be installed there, without extras.
        env: Environment variables; they override this process's own.
        cpu_affinity: The CPUs of each replica: the first one gets the first entry, and after the
            last entry it starts over. None for no CPU affinity.
        max_memory_bytes: A process with more resident memory than this is replaced after its
            current batch. It is killed if that batch takes it beyond twice this limit.
        shared_memory_bytes: The size of the shared memory for large arrays and bytes, in each
            direction; 0 for none. Only the used part takes up memory.
        log_lines: How many of the last lines of a process's output are kept.
        gpus: How many of the server's GPUs each replica has; with a part of one, so many replicas
            share it. Its process sees no other ones, by ``CUDA_VISIBLE_DEVICES``, and has
            ``OMP_NUM_THREADS=1``, unless `env` or the server's own environment has that variable.
    """

    python: str | None = option(None, _interpreter)
    env: Mapping[str, str] = table(environment)
    cpu_affinity: Sequence[Sequence[int]] | None = option(None, _cpus)
    max_memory_bytes: int | None = option(None, partial(whole, least=1))
    shared_memory_bytes: int = option(64 * 2**20, partial(whole, least=0))
    log_lines: int = option(200, partial(whole, least=0))
    gpus: float | None = option(None, number_of_gpus)

    def __post_init__(self) -> None:
        check_options(self)
