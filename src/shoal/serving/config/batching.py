"""The batch options of a backend: checked when they are given, loaded when a batcher is made.

A function may be given as an import path, which stays a path in the config: the module that it
names need not be there for those who only pass the config on. So the options are checked here with
something in its place that can be called, and the function itself is checked when it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, cast

from shoal.core.options.checks import function
from shoal.core.options.mixes import refused_fill
from shoal.core.options.options import BatchOptions
from shoal.core.options.records import LatencyTarget, QueuePolicy
from shoal.replicas.code.definition import imported, split_import_path
from shoal.serving.config.replicas import checked_mapping

SERVED_DEFAULTS: Final[Mapping[str, Any]] = {"max_queued_requests": 1024, "overload": "reject"}
"""What a batcher that serves is told unless its user says otherwise.

Its callers cost this process nothing to have, so nothing but a bound would stop them.
"""

DEFAULTS: Final = BatchOptions(**SERVED_DEFAULTS)
"""The batch options of a backend that is given none."""


def unset_batch_options() -> dict[str, Any]:
    """Returns every batch option as it is where it is not given, for a batcher to be set back."""
    unset: dict[str, Any] = dict(SERVED_DEFAULTS)
    for option in fields(BatchOptions):
        if option.name not in unset:
            make = option.default_factory
            unset[option.name] = option.default if make is MISSING else make()
    return unset


BATCH_NAMES: Final = tuple(field.name for field in fields(BatchOptions))

FUNCTIONS: Final = ("batch_size_fn", "bucket_by", "pad", "split", "join", "policy")
"""The batch options that are functions."""

OF_LISTS: Final = (
    "max_batch_size",
    "preferred_batch_sizes",
    "batch_size_fn",
    "split",
    "join",
    "allowed_batch_sizes",
    "pad",
    "batch_wait_timeout_s",
    "idle_timeout_s",
)
"""What says how a batch is made up, and means nothing to code that takes one item at a time."""


@dataclass(frozen=True)
class _Unloaded:
    """Stands in for a function that is given by its import path."""

    path: str

    def __call__(self, *_: Any) -> Any:
        raise AssertionError(f"{self.path} is not loaded yet")

    def __repr__(self) -> str:
        return repr(self.path)


def checked_batching(given: Mapping[str, Any], fill: str) -> dict[str, Any]:
    """Checks those of the given options that are a batcher's.

    Args:
        given: The options of a backend.
        fill: When its batches are complete.

    Returns:
        The batch options that were given, with their checked values; import paths as they are.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range, is no import path, or two do not go together.
    """
    plain = {name: _record(name, given[name]) for name in BATCH_NAMES if name in given}
    paths = {name: plain[name] for name in FUNCTIONS if isinstance(plain.get(name), str)}
    for name, path in paths.items():
        try:
            split_import_path(path)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    stand_ins = {name: _Unloaded(path) for name, path in paths.items()}
    options = BatchOptions.of({**SERVED_DEFAULTS, **plain, **stand_ins})
    if (refusal := refused_fill(fill, options)) is not None:
        raise ValueError(refusal)
    return {name: getattr(options, name) for name in plain} | paths


def loaded(batching: Mapping[str, Any]) -> dict[str, Any]:
    """Returns checked batch options with their functions imported.

    Raises:
        TypeError: An import path names nothing that can be called.
        ValueError: An import path names nothing that is there.
        Exception: What a module raised when it was imported.
    """
    found = dict(batching)
    for name in FUNCTIONS:
        path = found.get(name)
        if isinstance(path, str):
            found[name] = function(name, imported(path), f'{name}="package.module:a_function"')
    return found


def fitted(batching: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Returns batch options whose batches have at most so many requests.

    Raises:
        ValueError: No batch can have so few.
    """
    found = dict(batching)
    if found.get("batch_size_fn") is not None:
        raise ValueError(
            f"max_ongoing_requests={most} counts requests, and with batch_size_fn a batch is "
            "bounded by their costs; leave max_ongoing_requests out, and bound what a replica runs "
            "by max_batch_size and max_concurrent_batches"
        )
    if batch_size(found) <= most:
        return found
    found["max_batch_size"] = most
    for name in ("allowed_batch_sizes", "preferred_batch_sizes"):
        sizes = found.get(name)
        if sizes is None:
            continue
        kept = tuple(size for size in sizes if size <= most)
        if not kept:
            raise ValueError(
                f"max_ongoing_requests={most} leaves none of {name}={tuple(sizes)!r}: "
                "a batch must fit into what a replica may have at once"
            )
        found[name] = kept
        if name == "allowed_batch_sizes":
            found["max_batch_size"] = kept[-1]
    return found


def concurrency(batching: Mapping[str, Any]) -> float:
    """Returns ``max_concurrent_batches``; infinity where it is None, for no bound."""
    bound: int | None = batching.get("max_concurrent_batches", DEFAULTS.max_concurrent_batches)
    return math.inf if bound is None else bound


def batch_size(batching: Mapping[str, Any]) -> int:
    """Returns ``max_batch_size``."""
    return cast("int", batching.get("max_batch_size", DEFAULTS.max_batch_size))


def one_at_a_time(batching: Mapping[str, Any]) -> dict[str, Any]:
    """Returns batch options for code that takes one item at a time.

    Raises:
        ValueError: One of them is for code that takes lists.
    """
    for name in OF_LISTS:
        if name not in batching:
            continue
        value = batching[name]
        says_nothing = value in (0, None) if name.endswith("_s") else value in (1, None)
        if name == "batch_wait_timeout_s" and value is None:
            says_nothing = False  # until the batch is full
        if not says_nothing:
            raise ValueError(
                f"{name}={value!r} is for code that takes lists, and this takes one item at a "
                "time; mark it with @shoal.accept_batch, annotate its parameter with list[T], or "
                f"leave {name} out"
            )
    return {**batching, "max_batch_size": 1}


def _record(name: str, value: Any) -> Any:
    """Makes the record that a mapping stands for, such as one out of JSON."""
    if name == "adaptive":
        return _made(LatencyTarget, name, value)
    if name == "default_queue_policy":
        return _made(QueuePolicy, name, value)
    if name == "queue_policies":
        by_level = checked_mapping(name, value, 'queue_policies={2: {"timeout_s": 1}}')
        return {
            _level(level): _made(QueuePolicy, f"{name}[{level}]", policy)
            for level, policy in by_level.items()
        }
    return value


def _made(record: type[Any], name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    keywords: Mapping[Any, Any] = cast("Any", value)
    names = [field.name for field in fields(record)]
    for key in keywords:
        if key not in names:
            raise TypeError(f"{name} has no {key!r}; it has {', '.join(names)}")
    try:
        return record(**keywords)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _level(level: Any) -> Any:
    return int(level) if isinstance(level, str) and level.isdecimal() else level
