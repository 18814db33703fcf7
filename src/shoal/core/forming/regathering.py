"""Makes a batch that is due wait for callers of the last batch; see `returns` for when and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from shoal.core.batch import DispatchReason
from shoal.core.forming.returns import WORTH_S, ReturnTracker
from shoal.core.policies.factory import regathers
from shoal.core.policy import Dispatch, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.core.forming.overdue import Overdue
    from shoal.core.forming.pressures import PressureTracker
    from shoal.core.forming.room import QueueRoom
    from shoal.core.latency_model import LatencyModel
    from shoal.core.options.options import BatchOptions
    from shoal.core.policies.rule import Rule
    from shoal.core.request import Request

_WINDOW_ENDED: Final = (DispatchReason.TIMER, DispatchReason.IDLE)


class Regathering:
    """The waits of one batcher for callers who are about to come back.

    Args:
        model: The run times measured.
        room: Tells how many slots are idle.
        overdue: The time limits of requests.
        pressures: Tells how early a request must be dispatched.

    Attributes:
        urgent_before: A request that is due before this time can't wait, in seconds; minus infinity
            while no batch waits.
    """

    def __init__(
        self,
        model: LatencyModel,
        room: QueueRoom,
        overdue: Overdue,
        pressures: PressureTracker,
    ) -> None:
        self._model = model
        self._room = room
        self._overdue = overdue
        self._pressures = pressures
        self._returns: ReturnTracker | None = None
        self._most = 1
        self._has_waited = False
        self.urgent_before = -math.inf

    def change(self, options: BatchOptions) -> None:
        """Applies new options."""
        self._most = options.max_batch_size
        if not regathers(options):
            self._returns = None
        elif self._returns is None:
            self._returns = ReturnTracker(self._model)

    def ended(
        self, members: Iterable[Request], run_s: float, now: float, calls: int, running: int
    ) -> None:
        """Records the end of a batch; see `ReturnTracker.ended`."""
        returns = self._returns
        # Nothing is learned from short batches, and nothing was if it is not learning.
        if returns is not None and (run_s >= WORTH_S or returns.rounds):
            returns.ended(members, run_s, now, calls, running)

    @property
    def is_learning(self) -> bool:
        """Whether `callers_ran` must be called after the end of a batch."""
        return self._returns is not None and bool(self._returns.rounds)

    def callers_ran(self, now: float) -> None:
        """Records that the callers of the last batch have run; see `ReturnTracker.callers_ran`."""
        if self._returns is not None:
            self._returns.callers_ran(now)

    def decide(
        self, decision: Dispatch | Wait, policy: Rule, now: float, live: int, calls: int
    ) -> Dispatch | Wait:
        """Makes a batch wait if the policy dispatches it because its window has ended.

        Args:
            decision: What the policy has decided.
            policy: The policy.
            now: The time, in seconds.
            live: The number of queued requests.
            calls: How many requests were ever queued.
        """
        self.urgent_before = -math.inf
        returns = self._returns
        if returns is None or isinstance(decision, Wait):
            self._has_waited = False
            return decision
        if decision.reason in _WINDOW_ENDED:
            until, missing = returns.wait(calls, self._room.idle_slots)
            if missing:
                lead_s = self._pressures.lead_s(min(live + missing, self._most)) or 0
                # It includes requests that run, which only shortens the wait.
                until = min(until, self._overdue.timers.next_at() - lead_s)
                if until > now:
                    self._has_waited = True
                    self.urgent_before = until + lead_s
                    policy.hold()
                    wake_at = live + missing
                    return Wait(until, min(wake_at, self._most) if live < self._most else wake_at)
            if self._has_waited:
                decision = decision._replace(reason=DispatchReason.REGATHER)
        self._has_waited = False
        return decision
