"""``shoal why`` against a server: the reasons that it finds under real traffic."""

import itertools
import json
import random
import threading

import pytest
import trio
from driven_server import served
from processes import HANG_S

import shoal

pytestmark = pytest.mark.real_time


@pytest.fixture
def url():
    with served() as url:
        with shoal.connect(url) as client:
            config = {"max_batch_size": 16, "user_config": 0.01}
            client.create_backend("slow", "driven_models:Sleeper", config=config)
            client.create_endpoint("e", backend="slow")
        yield url


def configure(url, **config):
    with shoal.connect(url) as client:
        client.update_backend_config("slow", config)


@pytest.fixture
def arrivals(url):
    """Makes calls at random, which do not wait for one another."""
    is_over = threading.Event()
    chance = random.Random(1)

    async def call_at_random(rate):
        async with shoal.connect(url) as client:
            handle = await client.get_handle("e")
            async with trio.open_nursery() as calls:
                for number in itertools.count():
                    if is_over.is_set():
                        return
                    calls.start_soon(handle.call, number)
                    await trio.sleep(chance.expovariate(rate))

    threads = []

    def start(rate):
        threads.append(threading.Thread(target=trio.run, args=(call_at_random, rate)))
        threads[-1].start()

    yield start
    is_over.set()
    for thread in threads:
        thread.join(HANG_S)


@pytest.fixture
def looked(run, url):
    """Runs ``shoal why``, for longer if that is too short; gives the figures of one batcher."""

    def look(*arguments, seconds=1):
        told = ("--seconds", str(seconds), "--json", "--url", url)
        code, out, err = run("why", *arguments, *told)
        assert (code, err) == (0, "")
        [one] = json.loads(out)
        is_short = one["requests"] and kinds(one) == ["not-enough-traffic"]
        return look(*arguments, seconds=2 * seconds) if is_short else one

    return look


def kinds(figures):
    return [one["kind"] for one in figures["findings"]]


def test_without_traffic_nothing_can_be_told(looked):
    figures = looked()
    assert kinds(figures) == ["not-enough-traffic"]
    assert (figures["batcher"], figures["requests"], figures["mean_batch"]) == ("slow", 0, None)


def test_one_caller_after_the_other(looked, callers):
    callers(1)
    figures = looked("e")
    assert kinds(figures) == ["one-at-a-time"]
    assert figures["mean_batch"] == 1


def test_few_callers(looked, callers, url):
    configure(url, user_config=0.1)
    callers(4)
    figures = looked("slow")
    assert kinds(figures) == ["few-callers"]
    assert figures["mean_batch"] <= 4
    assert figures["max_batch_size"] == 16


def test_keys_that_divide_batches(looked, arrivals, url):
    configure(url, bucket_by="driven_models:last_digit", user_config=0.05)
    arrivals(50)
    figures = looked()
    [found] = [one for one in figures["findings"] if one["kind"] == "keys-divide-batches"]
    assert found["evidence"].startswith("bucket_by: 10 different keys")


def test_people_read_the_reason_its_evidence_and_what_to_change(run, url, callers):
    callers(1)
    code, out, err = run("why", "e", "--seconds", "4", "--url", url)
    assert (code, err) == (0, "")
    head, counts, _, symptom, evidence, change, more = out.splitlines()
    assert head == "slow: 1 requests a batch, at most 16"
    assert "dispatched because timer 100%" in counts
    assert symptom == "- One at a time"
    assert evidence.startswith("  evidence  at most 1 at the server at once")
    assert change.startswith("  change    Send items at the same time")
    assert more == "  more      'One at a time' on the page 'Why are my batches small?'"


def test_an_unknown_name_is_told(mistake, url):
    told = mistake("why", "els", "--url", url)
    assert told.startswith("shoal: there is no endpoint or backend")


def test_a_server_without_backends(run):
    with served() as url:
        assert run("why", "--seconds", "0.1", "--url", url) == (0, "no backends\n", "")
