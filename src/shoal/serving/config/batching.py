"""The batch options of a backend: checked with its config, loaded when a batcher is made.

A function may be an import path, which stays a path in the config: a process that only passes the
config on need not have the module. So the options are checked here with a callable stand-in for the
function, and the function itself is checked when it is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.core.options.checks import function
from shoal.core.options.mixes import refused_fill
from shoal.core.options.options import OPTIONS, BatchOptions
from shoal.replicas.code.definition import imported, split_import_path

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVED_DEFAULTS: Final[Mapping[str, Any]] = {"max_queued_requests": 1024, "overload": "reject"}
"""The defaults of a served batcher's options that differ from a plain batcher's.

Nothing in this process limits the number of remote callers, so the queue has a bound.
"""

DEFAULTS: Final = BatchOptions(**SERVED_DEFAULTS)
"""The batch options of a backend that is given none."""


def unset_batch_options() -> dict[str, Any]:
    """Returns the default of every batch option, to reset a batcher's options with."""
    return {name: getattr(DEFAULTS, name) for name in OPTIONS}


@dataclass(frozen=True)
class _Unloaded:
    """A stand-in for a function that is given by its import path."""

    path: str

    def __call__(self, *_: Any) -> Any:
        raise AssertionError(f"{self.path} is not loaded yet")

    def __repr__(self) -> str:
        return repr(self.path)


def checked_batching(given: Mapping[str, Any], fill: str) -> dict[str, Any]:
    """Checks the batch options among a backend's options; does not load import paths."""
    plain = {
        name: option.from_plain(name, given[name])
        for name, option in OPTIONS.items()
        if name in given
    }
    if hasattr(cast("Any", type(plain.get("open"))), "__aenter__"):
        raise TypeError(
            f"open={plain['open']!r} is a context manager, and a backend enters one for each of "
            "its methods; give the function that makes it: open=pool, not open=pool()"
        )
    paths = {
        name: value
        for name, value in plain.items()
        if OPTIONS[name].is_function and isinstance(value, str)
    }
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
    """Imports the functions of checked batch options."""
    found = dict(batching)
    for name, path in batching.items():
        if OPTIONS[name].is_function and isinstance(path, str):
            found[name] = function(name, imported(path), f'{name}="package.module:a_function"')
    return found


def fitted(batching: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Returns the batch options, changed so that a batch has at most `most` requests."""
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
    """Returns ``max_concurrent_batches``, or infinity if it is None (no limit)."""
    bound: int | None = batching.get("max_concurrent_batches", DEFAULTS.max_concurrent_batches)
    return math.inf if bound is None else bound


def batch_size(batching: Mapping[str, Any]) -> int:
    return cast("int", batching.get("max_batch_size", DEFAULTS.max_batch_size))


def one_at_a_time(batching: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the batch options for code that takes one item at a time."""
    for name, value in batching.items():
        if not OPTIONS[name].for_lists:
            continue
        has_no_effect = value in (0, None) if name.endswith("_s") else value in (1, None)
        if name == "batch_wait_timeout_s" and value is None:
            has_no_effect = False  # it waits until the batch is full
        if not has_no_effect:
            raise ValueError(
                f"{name}={value!r} is for code that takes lists, and this takes one item at a "
                "time; mark it with @shoal.accept_batch, annotate its parameter with list[T], or "
                f"leave {name} out"
            )
    return {**batching, "max_batch_size": 1}
