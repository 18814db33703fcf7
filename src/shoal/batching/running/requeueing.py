"""Puts requests of a batch back into the queue: after a `RetryLater`, or a death of its replica.

They are queued in front, in the order in which they arrived. Their callers do not notice; a request
that is out of time fails as any other.

* After a `RetryLater`, no batch starts for the time that the error names.
* After the death of a replica, requests of a closed batch go back as often as ``retries`` allows.
  Their time in the queue is not limited any more: they had left it in time.
* Requests of an open batch go back if its handler, in another process, ended before it got them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from shoal.core.request import Returned, State
from shoal.failures.retry_after import pause_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batching.calls.intake import Intake
    from shoal.core.request import Batch, Request
    from shoal.errors import RetryLater

logger: Final = logging.getLogger("shoal")

QUEUED = State.QUEUED
MOST_RETURNS: Final = 100
"""How often one request is put back, so that a handler that always raises comes to an end."""


def retry_later(
    intake: Intake, batch: Batch, requests: Sequence[Request], error: RetryLater
) -> None:
    """Queues running requests again, after a pause."""
    intake.former.limiter.pause(intake.parking.now() + pause_s(error))
    if batch.failure is None:
        batch.failure = error
    queue_again(intake, batch, requests)


def queue_again(
    intake: Intake, batch: Batch, requests: Sequence[Request], death: Exception | None = None
) -> None:
    """Queues running requests again; those that were put back too often stay RUNNING."""
    # `death` is that of their replica; they also stay RUNNING, and fail with it, if the queue takes
    # nothing back.
    if not intake.takes_back:
        if death is None:
            intake.stop(requests)
        return
    back: set[Request] = set()
    # Backwards, so that each is put in front of those that are back already.
    for place, request in reversed([*enumerate(requests)]):
        returned: Returned = getattr(request, "returned", Returned(batch.id, place))
        if returned.times < MOST_RETURNS:
            request.returned = returned._replace(
                times=returned.times + 1, deaths=returned.deaths + (death is not None)
            )
            back.add(request)
            _queue_one_again(intake, batch, request)
    # It may soon be in another batch, which this one must not end.
    batch.members = [request for request in batch.members if request not in back]
    intake.ring()
    if death is not None and back:
        logger.warning("%s: %d calls run again, since %s", intake.name, len(back), death)
        if batch.failure is None:
            batch.failure = death


def _queue_one_again(intake: Intake, batch: Batch, request: Request) -> None:
    request.batch, request.state = None, QUEUED
    batch.active -= 1
    asked = request.options
    try:
        if asked is None or asked.options_factory is not intake.options_factory:
            intake.options_factory.renew(request)  # options have changed
        intake.former.insert(request)
    except Exception as error:  # by a user's function or policy
        request.state = State.FAILED
        intake.fail_one(request, error)
        return
    except BaseException:
        request.batch, request.state = batch, State.RUNNING  # so that it is found, and failed
        batch.active += 1
        raise
    intake.counters.retried += 1
    intake.timers.wake_at(intake.overdue.watch_again(request))
