"""The HTTP settings of an `App`, as one frozen record that is checked when it is created."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

OverloadStatus = Literal[503, 429]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How an `App` reads requests and sends answers.

    Attributes:
        max_body_bytes: The largest body that a request may have, in bytes.
        max_json_elements: How many values, keys and containers a JSON body may have; fewer if most
            are containers, since their memory may be no more than 12 times the body's size, plus
            32 bytes for each permitted element, plus 1 MiB.
        send_timeout_s: How long the client may take to accept one message of an answer, in seconds.
        answer_timeout_s: How long a call with one result may take if its endpoint has no
            ``request_timeout_s``, in seconds; None for no limit.
        heartbeat_s: How long a stream may be silent before its client is sent a heartbeat, in
            seconds.
        overload_status: The status of the answer to a call that met a full queue.
        retry_after_s: The ``Retry-After`` of such an answer, in seconds.
        debug: Whether an answer to an internal error shows the traceback.
    """

    max_body_bytes: int = 16 * 2**20
    max_json_elements: int = 2**18
    send_timeout_s: float = 10.0
    answer_timeout_s: float | None = 60.0
    heartbeat_s: float = 15.0
    overload_status: OverloadStatus = 503
    retry_after_s: int = 1
    debug: bool = False

    def __post_init__(self) -> None:
        _check_whole("max_body_bytes", self.max_body_bytes)
        _check_whole("max_json_elements", self.max_json_elements)
        _check_whole("retry_after_s", self.retry_after_s)
        _check_seconds("send_timeout_s", self.send_timeout_s)
        _check_seconds("heartbeat_s", self.heartbeat_s)
        if self.answer_timeout_s is not None:
            _check_seconds("answer_timeout_s", self.answer_timeout_s)
        if self.overload_status not in get_args(OverloadStatus):
            raise ValueError(f"overload_status must be 503 or 429, not {self.overload_status!r}")


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value!r}")


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if math.isnan(value) or value <= 0:
        raise ValueError(f"{name} must be more than 0 seconds, not {value!r}")
