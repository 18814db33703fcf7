"""Suggestions for unknown option names: a misspelt name, or another system's name for an option.

A wrong suggestion is worse than none. So a name is suggested only if its spelling is close to the
one that was given, or if it contains all of its words. The names of other systems, with their
units, are in a table.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_ALIKE: Final = 0.75
"""The least similarity of two names for one to be a misspelling of the other: one letter of six."""

_WAIT: Final = "batch_wait_timeout_s"
_MILLISECONDS: Final = "in seconds: 10 milliseconds are 0.01"
_MICROSECONDS: Final = "in seconds: 100 microseconds are 0.0001"

OF_PEERS: Final[Mapping[str, tuple[str, str]]] = {
    # LitServe
    "batch_timeout": (_WAIT, "in seconds"),
    "workers_per_device": ("num_replicas", "with placement='process'"),
    # BentoML
    "max_latency_ms": (
        "request_timeout_s",
        "in seconds, to give up, or adaptive={'p99_s': 0.1}, to choose sizes for a latency",
    ),
    "workers": ("num_replicas", "with placement='process'"),
    "num_workers": ("num_replicas", "with placement='process'"),
    "max_concurrency": ("max_ongoing_requests", "for each replica"),
    # Triton
    "max_queue_delay_microseconds": (_WAIT, _MICROSECONDS),
    "max_queue_size": ("max_queued_requests", "in requests"),
    "queue_size": ("max_queued_requests", "in requests"),
    "default_timeout_microseconds": ("request_timeout_s", _MICROSECONDS),
    "instance_group": ("num_replicas", "a number"),
    # TensorFlow Serving
    "batch_timeout_micros": (_WAIT, _MICROSECONDS),
    "max_enqueued_batches": ("max_queued_requests", "in requests, not in batches"),
    "num_batch_threads": ("max_concurrent_batches", "which is 1 unless given"),
    "max_execution_batch_size": ("max_batch_size", "with split and join for larger items"),
    "enable_large_batch_splitting": ("split", "a function, and join"),
    "pad_variable_length_inputs": ("pad", "a function, with allowed_batch_sizes"),
    # mosec, TorchServe, batched, async-batcher, caikit, vLLM
    "max_wait_time": (_WAIT, _MILLISECONDS),
    "max_batch_delay": (_WAIT, _MILLISECONDS),
    "timeout_ms": (_WAIT, _MILLISECONDS),
    "max_wait_ms": (_WAIT, _MILLISECONDS),
    "max_queue_time": (_WAIT, "in seconds"),
    "concurrency": ("max_concurrent_batches", "which is 1 unless given"),
    "batch_collect_delay_s": ("idle_timeout_s", f"with {_WAIT} to bound the whole"),
    "max_num_seqs": ("max_batch_size", "with fill='continuous'"),
    # Ray Serve, which has these in a nested record
    "num_gpus": ("gpus", "as in gpus=1, with placement='process' or 'ray'"),
    "min_replicas": ("autoscaling", "as in autoscaling={'min_replicas': 1, 'max_replicas': 4}"),
    "max_replicas": ("autoscaling", "as in autoscaling={'min_replicas': 1, 'max_replicas': 4}"),
    "initial_replicas": ("num_replicas", "beside autoscaling"),
    # Several options could be meant
    "timeout": (
        _WAIT,
        "the wait for more, handler_timeout_s, of a batch, or request_timeout_s, of a call",
    ),
}
"""The names of other systems, with Shoal's name and the difference."""

_NOT_NEEDED: Final = {"graceful_shutdown_wait_loop_s": "leave it out: nothing is polled"}

_OF_CALLS: Final[Mapping[str, tuple[str, str]]] = dict.fromkeys(
    ("deadline_s", "deadline", "request_timeout_s"), ("timeout_s", "in seconds")
)
"""Other names for the options of one call."""


def suggested(name: object, known: Collection[str]) -> str | None:
    """Returns a clause such as ``did you mean 'max_batch_size'?``; None without a similar name."""
    given = str(name).lower()
    ours, difference = OF_PEERS.get(given) or _OF_CALLS.get(given, ("", ""))
    if ours in known:
        return f"write {ours}, {difference}"
    if (advice := _NOT_NEEDED.get(given)) is not None:
        return advice
    near = nearest(name, known)
    return None if near is None else f"did you mean {near!r}?"


def unknown_option(
    owner: str, name: object, known: Collection[str], beside: Collection[str] = ()
) -> TypeError:
    hint = suggested(name, (*known, *beside)) or f"there are {', '.join(known)}"
    return TypeError(f"{name!r} is not an option of {owner}; {hint}")


def nearest(name: object, known: Collection[str]) -> str | None:
    """Returns the known name that is most similar to an unknown one; None if none is similar."""
    # A name that lacks only the prefix `max_` or the unit is closer than one that starts or ends
    # alike: `batch_size` means `max_batch_size`, not `batch_size_fn`.
    given = str(name).lower().strip("-")
    by_likeness = {one: _likeness(given, one.lower().strip("-")) for one in known}
    near = {one: likeness for one, likeness in by_likeness.items() if likeness >= _ALIKE}
    return max(near, key=near.__getitem__, default=None)


def _likeness(given: str, known: str) -> float:
    """Returns a similarity from 0 to 1, plus 1 if `known` has all words of `given`."""
    whole = SequenceMatcher(None, given, known).ratio()
    core = SequenceMatcher(None, _core(given), _core(known)).ratio()
    has_all_words = _words(given) <= _words(known)
    return max(whole, core) + has_all_words


def _core(name: str) -> str:
    return name.removeprefix("max_").removesuffix("_s")


def _words(name: str) -> set[str]:
    words = _core(name).replace("-", "_").split("_")
    return {word.removesuffix("s").removesuffix("d") for word in words}
