"""Callers who come back after each batch, for tests of regathering without an event loop."""

from typing import Any

from core.former_scenes import admit, new
from shoal import BatchOptions
from shoal.core.forming.former import Former
from shoal.core.policy import Dispatch, Wait
from shoal.core.request import Batch, State


class Loop:
    """A queue whose callers all come back, a millisecond after each batch of a second."""

    def __init__(self, callers: int = 4, **options: Any) -> None:
        self.former = Former(BatchOptions.of({"max_batch_size": 8} | options))
        self.batches = self.former.batches
        self.now = 0.0
        self.in_order = True  # whether the requests of a batch are in order of arrival
        self.former.reform(idle_slots=1)
        self.numbers = 0
        self.come(callers)

    def come(self, callers: int, **asked: Any) -> None:
        admit(self.former, *[new(self.now, **asked) for _ in range(callers)])

    def decide(self) -> Dispatch | Wait:
        return self.former.decide(self.now)

    def wait(self) -> Any:
        """Decides, and returns the wait that was decided on."""
        decision = self.decide()
        assert isinstance(decision, Wait)
        return decision

    def run(self, decision: Dispatch | Wait, *, lasts_s: float = 1.0, late: int = 0) -> int:
        """Runs the batch that was decided on, while some call; returns how many callers it had."""
        assert isinstance(decision, Dispatch)
        requests = self.former.take(decision)
        self.numbers += 1
        batch = Batch(self.numbers, decision.reason, requests)
        for request in requests:
            request.state = State.RUNNING
        self.batches[batch] = self.now
        self.former.reform(idle_slots=0)
        self.now += lasts_s / 2
        self.come(late)
        self.now += lasts_s / 2
        self.end(batch, lasts_s)
        return len(requests)

    def end(self, batch: Batch, run_s: float) -> None:
        del self.batches[batch]
        for request in batch.members:
            request.state = State.FINISHED
            self.former.overdue.forget(request)
        self.former.model.observe(batch.load, run_s)
        running = len(self.batches)
        members = batch.members if self.in_order else batch.members[::-1]
        self.former.regathering.ended(members, run_s, self.now, self.former.calls, running)
        self.former.reform(idle_slots=1)

    def learn(
        self, rounds: int = 16, *, lasts_s: float = 1.0, back_s: float = 0.001, away: int = 0
    ) -> int:
        """Has the callers come back some times; returns how many the last batch had.

        Args:
            rounds: How many times.
            lasts_s: How long a batch runs.
            back_s: How long it takes until all are back.
            away: How many stay away; others call while the next batch runs.
        """
        callers = 0
        for nth in range(rounds):
            lasts = lasts_s * (1 + nth % 2 * 0.01)
            callers = self.run(self.settled(), lasts_s=lasts, late=away)
            for _ in range(callers - away):
                self.now += back_s / callers
                self.come(1)
        callers = self.run(self.settled(), lasts_s=lasts_s, late=away)
        self.now += 0.0001
        return callers

    def settled(self) -> Dispatch | Wait:
        """Decides, at the end of the wait if there is one."""
        decision = self.decide()
        if isinstance(decision, Wait) and decision.until is not None:
            self.now = decision.until
            decision = self.decide()
        return decision
