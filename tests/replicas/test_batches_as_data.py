"""What a worker process and a model server learn of the requests of a batch."""

import pytest

from shoal.core.forming.call_options import NO_CALL_OPTIONS
from shoal.core.request import Batch, DispatchReason
from shoal.replicas.process.wire.batch import BatchAsData, batch_as_data
from shoal.replicas.process.wire.messages import packed, unpickled
from shoal.testing.policies import make_request

SHARED = {"context": "python"}


def unusual_requests():
    requests = [
        make_request("plain"),
        make_request("late", deadline=12.0, metadata=SHARED),
        make_request("own", metadata={"user": "ann"}, priority=2, cost=3),
        make_request("none", arrived_at=4.0),
        make_request("model", metadata=SHARED),
    ]
    requests[2].options.asked_priority = 2
    requests[3].options = None
    requests[4].options.model = "small"
    return requests


def sent(batch, now, here):
    [pickle] = packed(batch_as_data(batch, now)).parts
    return BatchAsData(*unpickled(pickle)).as_batch(here).requests


def test_a_worker_gets_the_options_of_each_request_on_its_own_clock():
    received = sent(Batch(1, DispatchReason.FULL, unusual_requests()), 5.0, 105.0)
    assert [request.item for request in received] == ["plain", "late", "own", "none", "model"]
    assert [request.deadline for request in received] == [None, 112.0, None, None, None]
    assert [request.priority for request in received] == [1, 1, 2, 1, 1]
    assert [request.cost for request in received] == [1, 1, 3, 1, 1]
    assert [request.arrived_at for request in received] == [100, 100, 100, 104, 100]
    assert [request.metadata for request in received] == [
        *({}, SHARED, {"user": "ann"}, {}, {**SHARED, "model": "small"})
    ]


def test_requests_without_options_have_none_in_a_worker():
    requests = [make_request("a"), make_request("b")]
    for request in requests:
        request.options = None
    assert [each.options for each in sent(Batch(1, DispatchReason.FULL, requests), 0, 0)] == [
        None
    ] * 2


@pytest.mark.parametrize(
    "one", [make_request("a", metadata=SHARED), make_request("a", deadline=1.5)]
)
def test_requests_with_equal_options_keep_them(one):
    requests = [make_request(n) for n in range(3)]
    for request in requests:
        request.options = one.options
    received = sent(Batch(1, DispatchReason.FULL, requests), 0, 0)
    assert [(each.deadline, each.metadata) for each in received] == [
        (one.deadline, one.metadata)
    ] * 3


def test_a_model_server_gets_what_callers_asked_for():
    requests = unusual_requests()
    [pickle] = packed(batch_as_data(Batch(1, DispatchReason.FULL, requests), 5.0)).parts
    options = BatchAsData(*unpickled(pickle)).call_options(levels=3)
    assert [one.timeout_s for one in options] == [None, 7, None, None, None]
    assert [one.priority for one in options] == [None, None, 2, None, None]
    assert [one.metadata for one in options] == [{}, SHARED, {"user": "ann"}, {}, SHARED]
    [_, _, named, *_] = BatchAsData(*unpickled(pickle)).call_options(levels=1)
    assert named.priority == 1


def test_a_model_server_gets_no_options_where_no_request_has_any():
    requests = [make_request("a"), make_request("b")]
    for request in requests:
        request.options = None
    data = BatchAsData(*batch_as_data(Batch(1, DispatchReason.FULL, requests), 0))
    assert data.call_options(levels=1) == [NO_CALL_OPTIONS] * 2
