"""Does a rule that forms batches keep the promises of `BatchPolicy`?

A policy is asked and told the same things that a batcher asks and tells it, in random order. What
it decides is its own affair. What is checked is that no request is lost, handed out twice, or left
waiting by a slot that nobody wakes.

So the slot is played too. When the policy says `Wait` the slot sleeps, and is woken by what the
policy said would wake it and by nothing else. A sleeper that should have been woken is found by
asking the policy behind its back.

Random programs find what nobody thought of, and a seed makes each one come again. The first are the
shortest, so that what is found is short.
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

    It needs no event loop, and takes about a second. Give the policy batches of a few requests, so
    that many are formed.

    Args:
        make_policy: Makes a new policy, with nothing in its line.
        make_request: Makes a request, given a source of random choices and the time of arrival;
            `shoal.testing.make_request` helps. By default items are small numbers, and requests
            alike in all else.
        seeds: One for each random program; those of higher seeds are longer.

    Raises:
        AssertionError: It breaks a promise. The message says which, and how to come there.
    """
    for seed in seeds:
        _Trial(WatchedPolicy(make_policy(), seed), make_request, seed).run()


class _Trial:
    """One random program, played by a slot and its callers."""

    def __init__(self, policy: WatchedPolicy, make_request: MakeRequest, seed: int) -> None:
        self._policy = policy
        self._make_request = make_request
        self._random = Random(seed)  # noqa: S311 - it has to come again
        self._length = 4 + seed // 16
        self._now = 0.0
        self._last_arrival = 0.0
        self._asleep: Wait | None = None  # what the slot waits for; None while it is busy
        self._has_happened = False  # anything, since the slot fell asleep
        self._looks = 0

    def run(self) -> None:
        """Plays the program to its end, when everybody has been served."""
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
        if self._random.random() < 0.2:  # it was parked, and let in later
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
            self._look_behind_its_back(self._asleep)

    def _leave(self) -> None:
        if self._policy.queue:
            self._has_happened = True
            self._policy.remove(self._random.choice(list(self._policy.queue)))

    def _let_some_join(self) -> None:
        """Gives room in a batch that is open."""
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
        """Lets a slot that is free decide."""
        self._looks += 1
        self._go_on(self._policy.decide(self._now, None))

    def _go_on(self, decision: Dispatch | Wait) -> None:
        if isinstance(decision, Dispatch) and self._random.random() < 0.5:
            # A slot that has just run a batch first gives its callers a turn, and decides again.
            decision = self._policy.decide(self._now, None)
        self._follow(decision)

    def _follow(self, decision: Dispatch | Wait) -> None:
        if isinstance(decision, Dispatch):
            self._take(decision)
        else:
            self._asleep = decision
            self._has_happened = False

    def _look_behind_its_back(self, asleep: Wait) -> None:
        """Asks whether a slot that was not woken should have been."""
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
        """Looks whether arrivals alone wake a slot that waits for no time."""
        looks = self._looks
        for _ in range(_MORE_THAN_ANY_BATCH):
            if self._asleep is None or time_of(self._asleep) < math.inf or self._looks > looks:
                return
            self._add()
        raise self._policy.broken(f"{WOKEN}, but {_MORE_THAN_ANY_BATCH} arrivals did not do that")
