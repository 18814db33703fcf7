"""The hot path of a call repeats parts of other methods: each copy does what its original does."""

import anyio
import pytest

import shoal
from shoal.batching.calls.intake import Intake
from shoal.batching.calls.one_result import bare_call, call_with_options
from shoal.batching.loops.this_loop import parking_of_this_loop
from shoal.core.batch import Batch
from shoal.core.counters import Counters
from shoal.core.forming.call_options import CallOptions
from shoal.core.forming.former import Former
from shoal.core.options.options import BatchOptions
from shoal.core.request import RequestOptions, State, shared_options

pytestmark = pytest.mark.anyio

OPTIONS = {"max_batch_size": 3, "batch_wait_timeout_s": None}


class Side:
    """The callers' side of a queue at which a slot waits; counts how often the slot is woken."""

    def __init__(self, **options):
        self.former = Former(BatchOptions(**{**OPTIONS, **options}))
        self.rings = 0
        self.intake = Intake(
            "twin",
            self.former,
            parking_of_this_loop(),
            Counters(),
            ring=self.ring,
            is_blocked_by=lambda batch: False,
            adopt=lambda: None,
        )
        self.options_call = call_with_options(self.intake)
        self.bare_call = bare_call(self.intake, self.options_call, self.options_call)
        self.former.reform(idle_slots=1)
        self.former.decide(anyio.current_time())
        self.looks = 0
        self.intake.deadlines.look = self.look
        self.calls = []

    def ring(self):
        self.rings += 1

    def look(self):
        self.looks += 1

    def call(self, item, options=None):
        """Makes a call, up to where it waits; returns its request."""
        call = self.bare_call(item) if options is None else self.options_call(item, options)
        call.send(None)
        self.calls.append(call)
        return self.former.parked_and_queued()[-1]

    def request(self, item, options=None):
        intake = self.intake
        request = intake.new_request(item, options, intake._new_waiter(), intake._now())
        request.state = State.QUEUED
        return request

    def options(self, timeout_s):
        choices = CallOptions(timeout_s)
        return self.intake.options_factory.of(0, choices, anyio.current_time())

    def state(self):
        former, timers = self.former, self.former.overdue.timers
        queue = former.live, former.parked, former.wake_at, former.size
        return queue, self.rings, self.looks, timers.next_at(), timers.forgotten

    def close(self):
        for call in self.calls:
            call.close()


@pytest.fixture
async def sides():
    made = Side(), Side()
    yield made
    for side in made:
        side.close()


def fields_of(record):
    """The fields by name; of those that differ from request to request, the types."""
    fields = {name: getattr(record, name, "unset") for name in type(record).__slots__}
    apart = ("context", "waiter", "options", "options_factory")
    return {name: type(one) if name in apart else one for name, one in fields.items()}


async def test_the_request_of_a_call_is_as_new_request_makes_it(sides):
    copy, original = sides
    assert fields_of(copy.call(7)) == fields_of(original.request(7))


async def test_the_requests_of_a_map_are_too(sides):
    copy, original = sides
    made = copy.intake.enter_group([7, 8], None)
    wanted = [original.request(item) for item in (7, 8)]
    for request, other in zip(made, wanted, strict=True):
        other.waiter = request.waiter
        assert fields_of(request) == fields_of(other)


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
async def test_a_call_is_queued_as_by_arrive(sides, calls):
    copy, original = sides
    for number in range(calls):
        copy.call(number)
        if original.former.arrive(original.request(number)):
            original.ring()
    assert copy.state() == original.state()
    assert copy.rings


@pytest.mark.parametrize("calls", [1, 2, 3])
async def test_a_call_with_metadata_is_queued_as_by_arrive(sides, calls):
    copy, original = sides
    for number in range(calls):
        copy.call(number, shared_options({}))
        if original.former.arrive(original.request(number, shared_options({}))):
            original.ring()
    assert copy.state() == original.state()
    assert copy.rings


def test_all_times_of_a_call_are_moved():
    options = RequestOptions(deadline=3)
    options.due = 2
    options.move(5)
    assert (options.deadline, options.due) == (8, 7)


@pytest.mark.parametrize("asleep_until", [1, 1000])
async def test_the_deadline_of_a_call_is_watched_as_by_watch(sides, asleep_until):
    copy, original = sides
    for side in sides:
        side.intake.deadlines.asleep_until = anyio.current_time() + asleep_until
    request = copy.call(7, copy.options(5))
    other = original.request(7, original.options(5))
    if original.former.arrive(other):
        original.ring()
    original.intake.deadlines.watch(other)
    assert copy.state() == original.state()
    assert copy.looks == (asleep_until > 5)
    assert request.options.timer[:2] == other.options.timer[:2]
    assert request.options.timer[2] is request


@pytest.mark.parametrize("has_expired", [False, True])
async def test_the_deadline_of_a_call_that_ended_is_forgotten_as_by_forget(sides, has_expired):
    copy, original = sides
    request, other = [side.call(7, side.options(5)) for side in sides]
    if has_expired:
        for side in sides:
            side.intake.deadlines.expire_all()
            list(side.former.overdue.timers.due(anyio.current_time() + 6))
    copy.calls.pop().close()
    original.intake.abandon(other)
    original.former.overdue.forget(other)
    assert copy.state() == original.state()
    assert request.options.timer is other.options.timer is None


async def test_the_options_of_a_call_have_all_fields_of_the_record(sides):
    copy, _ = sides
    assert fields_of(copy.options(None)).keys() == set(RequestOptions.__slots__)
    made, usual = fields_of(copy.options(None)), fields_of(RequestOptions())
    del made["options_factory"], usual["options_factory"]
    assert made == usual


async def test_a_request_that_is_answered_ends_as_by_end():
    seen = []

    async def handler(items: list[int]) -> list[int]:
        seen.append((shoal.current_batch(), list(shoal.current_batch().requests)))
        return items

    batcher = shoal.Batcher(handler)
    async with batcher as call:
        await call.map([1, 2])
        [(batch, [copy, _])] = seen
        run = batcher._session.slots.run
        original = Side().request(1)
        original.batch = other = Batch(1, batch.reason, [original])
        run._end(original, State.FINISHED)
        original.value, original.waiter = copy.value, copy.waiter
        assert fields_of(copy) == fields_of(original)
        assert (batch.active, other.active) == (0, 0)
