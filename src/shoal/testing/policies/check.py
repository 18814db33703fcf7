"""Checks that a batch policy keeps the promises of `BatchPolicy`.

The check calls the policy's methods as a batcher does, in random order. Its decisions are its own
choice; the check is that no request is lost, returned twice, or left waiting because the slot is
never woken.

A worker slot is therefore simulated, too. After `Wait` the slot sleeps, and only the condition that
the policy named wakes it. Extra calls of `decide` find out whether it should have been woken.

Random programs find cases that nobody thought of, and a seed reproduces each one. The first
programs are the shortest, so that the reported one is short.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from shoal.core.batch import DispatchReason
from shoal.core.policy import Dispatch, Pressure
from shoal.testing.policies.watched import TIME, WOKEN, WatchedPolicy, time_of
from shoal.testing.requests import make_request as plain_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.core.policy import BatchPolicy, Wait
    from shoal.core.request import Request

    MakeRequest = Callable[[Random, float], Request]

_MORE_THAN_ANY_BATCH = 1000


def _any_request(random: Random, arrived_at: float) -> Request:
    return plain_request(random.randrange(20), arrived_at=arrived_at)


def check_policy(
    make_policy: Callable[[], BatchPolicy],
    *,
    make_request: MakeRequest = _any_request,
    seeds: Iterable[int] = range(1000),
) -> None:
    """Checks that a policy keeps the promises of `BatchPolicy`.

    It needs no event loop, and takes about a second. Configure the policy for small batches, so
    that many are formed.

    Args:
        make_policy: Makes a new policy with an empty queue.
        make_request: Makes a request from a random generator and the arrival time, with
            `shoal.testing.make_request`, for example. By default items are small numbers, and
            requests have no other differences.
        seeds: One for each random program; higher seeds give longer programs.

    Raises:
        AssertionError: The policy breaks a promise. The message names the promise, and has the
            steps to reproduce it.
    """
    for seed in seeds:
        _Trial(WatchedPolicy(make_policy(), seed), make_request, seed).run()


class _Trial:
    """One random program of arrivals, departures and decisions, with a simulated slot."""

    def __init__(self, policy: WatchedPolicy, make_request: MakeRequest, seed: int) -> None:
        self._policy = policy
        self._make_request = make_request
        self._random = Random(seed)  # noqa: S311 - it must be reproducible
        self._length = 4 + seed // 16
        self._now = 0.0
        self._last_arrival = 0.0
        self._asleep: Wait | None = None  # None while the slot is busy
        self._has_happened = False  # whether anything happened since the slot fell asleep
        self._looks = 0

    def run(self) -> None:
        self._look()
        steps = {
            self._arrive: 8,
            self._let_time_pass: 4,
            self._look: 4,
            self._leave: 2,
            self._pressure: 1,
            self._let_some_join: 1,
        }
        for step in self._random.choices(list(steps), list(steps.values()), k=self._length):
            step()
        self._look()
        self._wake_by_arrivals()
        while self._policy.queue:
            self._serve(Pressure(DispatchReason.DRAIN))
        self._policy.decide(self._now, Pressure(DispatchReason.DRAIN))
        self._policy.decide(self._now, None)

    def _arrive(self) -> None:
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            self._add()

    def _add(self) -> None:
        if self._random.random() < 0.2:  # it was parked, and admitted later
            self._last_arrival = self._random.uniform(self._last_arrival, self._now)
        else:
            self._last_arrival = self._now
        self._has_happened = True
        is_told = self._policy.add(self._make_request(self._random, self._last_arrival))
        if self._asleep is None:
            return
        if is_told or len(self._policy.queue) == self._asleep.wake_at:
            self._look()
        elif self._random.random() < 0.5:
            self._check_sleeping_slot(self._asleep)

    def _leave(self) -> None:
        if self._policy.queue:
            self._has_happened = True
            self._policy.remove(self._random.choice(list(self._policy.queue)))

    def _let_some_join(self) -> None:
        self._has_happened = True
        self._policy.take_within(self._random.randint(1, 5))

    def _let_time_pass(self) -> None:
        until = math.inf if self._asleep is None else time_of(self._asleep)
        if until == math.inf:
            self._now += 10 ** self._random.uniform(-4, 1)
        elif self._random.random() < 0.4:
            self._now = min(self._random.uniform(self._now, until), math.nextafter(until, -1))
        else:
            self._now = until + self._random.choice([0, 0, 0.001, 10])
            has_happened = self._has_happened
            decision = self._policy.decide(self._now, None)
            if not isinstance(decision, Dispatch) and not has_happened:
                raise self._policy.broken(TIME)
            self._go_on(decision)

    def _look(self) -> None:
        """Lets a free slot decide."""
        self._looks += 1
        self._go_on(self._policy.decide(self._now, None))

    def _go_on(self, decision: Dispatch | Wait) -> None:
        if isinstance(decision, Dispatch) and self._random.random() < 0.5:
            # A slot that has just run a batch lets its callers run, and then decides again.
            decision = self._policy.decide(self._now, None)
        self._follow(decision)

    def _follow(self, decision: Dispatch | Wait) -> None:
        if isinstance(decision, Dispatch):
            self._take(decision)
        else:
            self._asleep = decision
            self._has_happened = False

    def _check_sleeping_slot(self, asleep: Wait) -> None:
        """Checks that a sleeping slot did not need to be woken."""
        decision = self._policy.decide(self._now, None)
        if isinstance(decision, Dispatch) or time_of(decision) < time_of(asleep):
            raise self._policy.broken(f"{WOKEN}, but the last one was told {asleep}")

    def _pressure(self) -> None:
        queue = self._policy.queue
        if not queue or self._random.random() < 0.5:
            self._serve(Pressure(self._random.choice([DispatchReason.FLUSH, DispatchReason.DRAIN])))
            return
        request = self._random.choice(list(queue))
        while request in queue:
            self._serve(Pressure(DispatchReason.DEADLINE, request))

    def _serve(self, pressure: Pressure) -> None:
        self._follow(self._policy.decide(self._now, pressure))

    def _take(self, dispatch: Dispatch) -> None:
        self._asleep = None
        taken = self._policy.take(dispatch)
        if self._random.random() < 0.15:
            some = self._random.sample(taken, self._random.randint(1, len(taken)))
            self._policy.put_back(taken, departed=set(some))

    def _wake_by_arrivals(self) -> None:
        """Checks that arrivals alone wake a slot that waits without a time limit."""
        looks = self._looks
        for _ in range(_MORE_THAN_ANY_BATCH):
            if self._asleep is None or time_of(self._asleep) < math.inf or self._looks > looks:
                return
            self._add()
        raise self._policy.broken(f"{WOKEN}, but {_MORE_THAN_ANY_BATCH} arrivals did not do that")
