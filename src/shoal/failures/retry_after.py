"""``Retry-After`` of HTTP responses: the time it names, and the error that a handler raises."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

from shoal.errors import RetryLater

LEAST_PAUSE_S: Final = 0.01
"""The shortest pause, in seconds, so that a handler that always raises leaves time for others."""

_REFUSALS: Final = (429, 503)


def raise_for_retry(
    response: Any, *, otherwise_s: float | None = None, most_s: float = 600.0
) -> None:
    """Raises `RetryLater` for a response 429 or 503 that says when to try again.

    Call it in a handler, before ``response.raise_for_status()``. ``Retry-After`` may be a number of
    seconds or a date.

    Args:
        response: A response of httpx or requests; any object with ``status_code`` and ``headers``.
        otherwise_s: The time for such a response without a valid ``Retry-After``, in seconds. None
            does not raise for it.
        most_s: The longest time, in seconds, which is used if the server asks for more.

    Raises:
        RetryLater: The response is a 429 or 503, with a time.
    """
    if response.status_code not in _REFUSALS:
        return
    after_s = seconds_of(response.headers.get("retry-after", ""))
    if after_s is None:
        after_s = otherwise_s
    if after_s is not None:
        raise RetryLater(min(after_s, most_s))


def retry_of(error: BaseException) -> RetryLater | None:
    """Returns the `RetryLater` that a handler raised; of a group of such errors, the longest."""
    # A handler that makes several requests at once, in a nursery, raises a group.
    longest: RetryLater | None = None
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left += _members(one)
        elif not issubclass(type(one), RetryLater):
            return None
        elif longest is None or pause_s(one) > pause_s(longest):
            longest = cast("RetryLater", one)
    return longest


def _members(group: Any) -> tuple[BaseException, ...]:
    return cast("tuple[BaseException, ...]", BaseExceptionGroup.exceptions.__get__(group))


def pause_s(error: BaseException) -> float:
    # A subclass of the user's may lack it, or have it as any value.
    fields: dict[str, Any] = BaseException.__getattribute__(error, "__dict__")
    after_s: object = fields.get("after_s")
    if type(after_s) is float and LEAST_PAUSE_S < after_s < float("inf"):
        return after_s
    return LEAST_PAUSE_S


def seconds_of(retry_after: str) -> float | None:
    """Returns the seconds that ``Retry-After`` asks for, as a number or as a date; None if none."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
