"""`shoal.raise_for_retry`: what a response of an API says about trying again."""

import time
from email.utils import formatdate
from typing import Any

import httpx
import pytest

import shoal


def asked_s(status: int, retry_after: str | None, **how: Any) -> float | None:
    """Returns the time that is raised for a response; None if nothing is."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    try:
        shoal.raise_for_retry(httpx.Response(status, headers=headers), **how)
    except shoal.RetryLater as later:
        return later.after_s
    return None


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("seconds", [0, 1, 90])
def test_it_may_ask_for_seconds(status: int, seconds: int) -> None:
    assert asked_s(status, str(seconds)) == seconds


def test_it_may_ask_for_a_date() -> None:
    asked = asked_s(429, formatdate(time.time() + 60, usegmt=True))
    assert asked is not None
    assert 55 < asked <= 60


def test_a_date_in_the_past_asks_for_no_time() -> None:
    assert asked_s(503, "Sun, 06 Nov 1994 08:49:37 GMT") == 0


@pytest.mark.parametrize("retry_after", [None, "", "soon", "-5", "1.5", "nan", "9" * 400])
def test_what_is_no_time_does_not_count(retry_after: str | None) -> None:
    assert asked_s(429, retry_after) is None
    assert asked_s(429, retry_after, otherwise_s=2) == 2


def test_a_server_can_not_ask_for_ever() -> None:
    assert asked_s(429, "999999999") == 600
    assert asked_s(429, "999999999", most_s=5) == 5
    assert asked_s(429, "Fri, 31 Dec 9999 23:59:59 GMT", most_s=5) == 5


@pytest.mark.parametrize("status", [200, 301, 404, 500, 502])
def test_other_responses_are_left_alone(status: int) -> None:
    assert asked_s(status, "5", otherwise_s=1) is None


def test_the_message_says_what_happened() -> None:
    with pytest.raises(shoal.RetryLater, match="asked to be called 5 s later"):
        shoal.raise_for_retry(httpx.Response(503, headers={"retry-after": "5"}))
