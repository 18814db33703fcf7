"""What is likely to be meant by a name that is none here: a slip, or another system's word for it.

A guess that is wrong costs more than none: who is told that ``max_latency_ms`` is `isolate_errors`
believes no other. So a name is suggested only if it is spelled much like the one that was given, or
has all of its words; and the names that peers have, in their units, are in a table.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_ALIKE: Final = 0.75
"""From here on two names are one, misspelt: of six letters one may be wrong."""

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
    # Ray Serve, where they stand in a record
    "num_gpus": ("ray_options", "as in ray_options={'num_gpus': 1}, with placement='ray'"),
    "min_replicas": ("autoscaling", "as in autoscaling={'min_replicas': 1, 'max_replicas': 4}"),
    "max_replicas": ("autoscaling", "as in autoscaling={'min_replicas': 1, 'max_replicas': 4}"),
    # Several options are that
    "timeout": (
        _WAIT,
        "the wait for more, handler_timeout_s, of a batch, or request_timeout_s, of a call",
    ),
}
"""Names that other systems have, by ours, with what differs."""


def suggested(name: object, known: Collection[str]) -> str | None:
    """Says what is likely to be meant by an unknown name; None where nothing is like it.

    Args:
        name: The name.
        known: The names that there are.

    Returns:
        A clause for an error: ``did you mean 'max_batch_size'?``.
    """
    ours, difference = OF_PEERS.get(str(name).lower(), ("", ""))
    if ours in known:
        return f"write {ours}, {difference}"
    near = nearest(name, known)
    return None if near is None else f"did you mean {near!r}?"


def nearest(name: object, known: Collection[str]) -> str | None:
    """Returns the known name that an unknown one is most likely meant for; None if none is like it.

    A name that lacks nothing but the ``max_`` before it or the unit behind it is nearer than one
    that begins or ends alike: ``batch_size`` is ``max_batch_size``, and not ``batch_size_fn``.
    """
    given = str(name).lower().strip("-")
    by_likeness = {one: _likeness(given, one.lower().strip("-")) for one in known}
    near = {one: likeness for one, likeness in by_likeness.items() if likeness >= _ALIKE}
    return max(near, key=near.__getitem__, default=None)


def _likeness(given: str, known: str) -> float:
    """Returns how like two names are: from 0 to 1, and above if one has all words of the other."""
    whole = SequenceMatcher(None, given, known).ratio()
    core = SequenceMatcher(None, _core(given), _core(known)).ratio()
    has_all_words = _words(given) <= _words(known)
    return max(whole, core) + has_all_words


def _core(name: str) -> str:
    return name.removeprefix("max_").removesuffix("_s")


def _words(name: str) -> set[str]:
    words = _core(name).replace("-", "_").split("_")
    return {word.removesuffix("s").removesuffix("d") for word in words}
