"""What commands print: tables, lines and messages."""

import re

import pytest

from shoal.commands.support.output import config_listed, facts, status_listed, table, weights
from shoal.status import BackendStatus, EndpointStatus, ReplicaStatus, Status


def test_figures_are_to_the_right_and_words_to_the_left():
    rows = [("a", "1", "x", "-"), ("long", "1,000", "-", "20 MiB"), ("b", "-", "yy", "3 MiB")]
    assert table(("NAME", "N", "WORDS", "SIZE"), rows) == (
        "NAME      N  WORDS    SIZE\n"
        "a         1  x           -\n"
        "long  1,000  -      20 MiB\n"
        "b         -  yy      3 MiB"
    )


@pytest.mark.parametrize(
    "figure", ["0", "12,346", "5.99", "1e-05", "2.5 ms", "52.5 µs", "3 s", "0.4%", "3 MiB"]
)
def test_a_number_with_its_unit_is_a_figure(figure):
    assert table(("SIZE OF IT",), [(figure,)]).splitlines()[1] == figure.rjust(10)


@pytest.mark.parametrize("words", ["1/2", "small 90%", "2 models", "v1", "ms"])
def test_what_only_has_a_number_in_it_is_no_figure(words):
    assert table(("SIZE OF IT",), [(words,)]).splitlines()[1] == words


def test_a_table_without_rows_says_so():
    assert table(("BACKEND", "CODE"), []) == "no backends"


def test_the_status_has_the_addresses_of_model_servers():
    replica = ReplicaStatus(tag="b#0", state="ready", ongoing=0, batches=0, address="unix:/a")
    listed = status_listed(Status(backends={"b": backend(replicas=[replica])}))
    assert "REPLICA  MODEL SERVER\nb#0      unix:/a" in listed


def test_the_columns_of_the_status_are_named_for_what_they_count():
    """A backend counts what its code failed, an endpoint also what it refused."""
    replica = ReplicaStatus(tag="b#0", state="ready", ongoing=0, batches=7)
    endpoint = EndpointStatus(name="e", route="/e", methods=["GET"], traffic={"b": 1}, errors=5)
    status = Status(
        backends={"b": backend(replicas=[replica], errors=3)}, endpoints={"e": endpoint}
    )
    parts = [part.splitlines() for part in status_listed(status).split("\n\n")]
    shown = [dict(zip(*(re.split(r" {2,}", line) for line in part), strict=True)) for part in parts]
    assert [shown[0]["FAILED IN CODE"], shown[1]["RUNS"]] == ["3", "7"]
    assert shown[2]["FAILED OR REFUSED"] == "5"


def test_facts_are_aligned():
    assert facts([("a", "1"), ("long", "")]) == "a     1\nlong"


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({}, ""),
        ({"a": 1.0}, "a 100%"),
        ({"a": 0.9, "b": 0.1}, "a 90%, b 10%"),
        ({"a": 0.9995, "b": 0.0005}, "a 99.95%, b 0.05%"),
    ],
)
def test_shares_are_written_as_percent(shares, text):
    assert weights(shares) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (5 * 2**20, "5 MiB"),
        (3 * 2**30, "3,072 MiB"),
    ],
)
def test_the_memory_of_a_replica_is_shown(size, text):
    replica = ReplicaStatus(tag="b#0", state="ready", ongoing=1, batches=2, memory_bytes=size)
    told = status_listed(Status(backends={"b": backend(replicas=(replica,))}))
    assert told.split("\n\n")[1].splitlines()[1].endswith(f"  {text}")


def test_a_failure_is_told_below_and_only_ready_replicas_are_counted():
    replicas = (
        ReplicaStatus(tag="b#0", state="ready", ongoing=0, batches=0),
        ReplicaStatus(tag="b#1", state="starting", ongoing=0, batches=0),
    )
    told = status_listed(
        Status(
            backends={"b": backend(replicas=replicas, failure="it was killed")},
            endpoints={"e": EndpointStatus(name="e", route=None, methods=("GET",), traffic={})},
        )
    )
    assert " 1/2 " in told
    assert told.endswith("\n\nb: it was killed")


def test_a_config_is_a_line_for_each_option():
    assert config_listed({"retries": 1, "placement": "task"}) == "retries=1\nplacement='task'"
    assert config_listed({}) == "all defaults"


def backend(**changed):
    names = {"tag": "b", "code": "m:b", "placement": "process", "state": "degraded"}
    numbers = dict.fromkeys(("queued", "ongoing", "requests", "errors", "deaths", "restarts"), 0)
    return BackendStatus(**{**names, "wanted": 2, "starts": 1, **numbers, **changed})
