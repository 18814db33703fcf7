"""``shoal simulate``: its traffic, its options, what it prints, and mistakes."""

import json
import re
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper

import pytest

from shoal.cli import main

pytestmark = pytest.mark.slow

COMMAND = "simulate"

CONSTANT = ["--rate", "100", "--duration", "1", "--traffic", "constant", "--run-time", "0.004"]


def test_it_says_what_came_of_the_options(told):
    text = told(*CONSTANT, "--option", "max_batch_size=4", "--option", "batch_wait_timeout_s=0.5")
    assert text.splitlines() == [
        "traffic   100 requests in 1 s, 100 a second (constant, seed 0)",
        "run time  4 ms + 0 s an item",
        "",
        "compared         these options",
        "answered                   100",
        "refused or shed              0",
        "out of time                  0",
        "latency p50              14 ms",
        "latency p90              34 ms",
        "latency p99              34 ms",
        "latency max              34 ms",
        "wait p50                 10 ms",
        "wait p99                 30 ms",
        "batches                     25",
        "mean batch                   4",
        "handler busy               10%",
        "because full              100%",
        "",
        "these options: max_batch_size=4, batch_wait_timeout_s=0.5",
    ]


def test_callers_may_call_again_and_again(told):
    text = told(
        *("--callers", "48", "--think", "0.0005", "--duration", "1"),
        *("--run-time", "0.002+0.00005n", "--option", "max_batch_size=64"),
    )
    traffic, *_ = text.splitlines()
    assert traffic == (
        "traffic   48 callers for 1 s, each of which calls again 500 µs after a result (seed 0)"
    )
    assert re.search(r"because regather +\d\d%", text)


def test_batches_may_be_limited(told):
    data = told(
        *("--rate", "20", "--traffic", "constant", "--duration", "10", "--run-time", "0.01"),
        *("--option", "max_batch_size=96", "--option", 'limit={"batches_per_s": 2}', "--json"),
    )
    assert data["reasons"]["limit"] >= 18
    assert sum(data["reasons"].values()) <= 21


def test_callers_may_have_priorities(told):
    data = told(
        *("--callers", "2", "--duration", "1", "--run-time", "0.01", "--json"),
        *("--option", "priority_levels=2"),
    )
    assert data["priorities"] == {}


def test_programs_get_the_same_as_data(told):
    data = told(*CONSTANT, "--json")
    assert data["requests"] == 100
    assert data["outcomes"]["finished"] == 100
    assert data["latency_s"]["p99"] == pytest.approx(0.004)
    assert (data["batches"], data["mean_batch"]) == (100, 1.0)
    assert data["reasons"]["timer"] == 100
    assert data["run_time"] == {"fixed_s": 0.004, "per_item_s": 0.0}
    assert data["busy_share"] == pytest.approx(0.4, rel=0.02)


@pytest.mark.parametrize("traffic", ["poisson", "bursty"])
def test_traffic_that_is_drawn_depends_on_the_seed(traffic, told):
    arguments = f"--rate 50 --duration 10 --traffic {traffic} --run-time 0.01+.01n".split()
    first = told(*arguments, "--json")
    assert told(*arguments, "--json") == first
    assert told(*arguments, "--seed", "1", "--json") != first


def test_run_times_can_vary(told):
    first = told(*CONSTANT, "--json")
    assert told(*CONSTANT, "--jitter", "0.5", "--json")["latency_s"] != first["latency_s"]


def test_what_more_than_the_handler_can_do_leads_to_is_said(told):
    arguments = ["--rate", "100", "--duration", "5", "--run-time", "0.01+0.01n"]
    text = told(*arguments, "--option", "max_batch_size=4")
    assert text.rstrip().endswith(
        "The traffic exceeds the capacity of these options, 80 requests/s in full batches: "
        "the queue keeps growing."
    )
    assert "exceeds" not in told(*arguments, "--rate", "60", "--option", "max_batch_size=4")


def test_refused_requests_are_counted(told):
    text = told(*CONSTANT, "--run-time", "0.5", "--option", "max_queued_requests=10")
    assert re.search(r"refused or shed +[1-9]\d\n", text)


def test_a_trace_is_played(told, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "at,priority,cost,bucket,user,deadline_s\n0,2,1,a,x,9\n0,1,3,a,x,9\n0,1,1,b,x,9\n"
    )
    arguments = [str(path), "--run-time", "1n", "--option", "max_batch_size=3"]
    text = told(*arguments, "--option", "priority_levels=2")
    assert "3 requests in 0 s" in text
    assert "these options: max_batch_size=3, priority_levels=2\n" in text
    assert re.search(r"batches +3\nmean batch +1\n", text)
    assert text.splitlines()[-4:] == [
        "",
        "priority  requests  answered  p50  p99  max",
        "       1         2      100%  3 s  4 s  4 s",
        "       2         1      100%  5 s  5 s  5 s",
    ]
    assert told.err == (
        "unknown columns, ignored: user, deadline_s (write timeout_s, in seconds)\n"
    )


def test_shard_keys_of_a_trace_prefer_replicas(told, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"{number / 100},user-{number % 7}" for number in range(200)]
    trace.write_text("\n".join(["at,shard_key", *rows]))
    shape = (str(trace), "--run-time", "0.02", "--replicas", "3")
    some = told(*shape, "--option", "sticky_load_factor=1", "--json")["spilled_share"]
    assert 0 < some < 1
    text = told(*shape, "--option", "sticky_load_factor=3")
    assert re.search(r"not on the preferred replica +0%", text)
    assert "unknown columns" not in text


def test_models_of_a_trace_are_loaded(told, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"{number / 100},{'abc'[number % 3]}" for number in range(200)]
    trace.write_text("\n".join(["at,model", *rows]))
    shape = (str(trace), "--run-time", "0.002", "--load-time", "0.05")
    all_fit = told(*shape, "--replicas", "3", "--option", 'models={"most": 1}', "--json")
    assert all_fit["loads"] == 3
    text = told(*shape, "--option", 'models={"most": 2, "max_switch_wait_s": 0.3}')
    loads = re.search(r"loads of models +(\d+)", text)
    assert loads is not None
    assert int(loads[1]) > 3


def test_priorities_need_levels(told, tmp_path, capsys):
    path = tmp_path / "trace.csv"
    path.write_text("at,priority\n0,2\n")
    told(str(path), "--run-time", "1", code=2)
    assert told.err == ("shoal: the trace has priorities up to 2; add --option priority_levels=2\n")


def test_a_plot_is_saved(told, tmp_path):
    path = tmp_path / "plot.png"
    told(*CONSTANT, "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert told.err == f"Saved {path}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--run-time", "1"],
            "give the traffic: either --rate REQUESTS-A-SECOND, --callers N or FILE",
        ),
        ([*CONSTANT, "x"], "give the traffic"),
        ([*CONSTANT, "--callers", "2"], "give the traffic"),
        ([*CONSTANT, "--think", "2"], "--think is for --callers N"),
        (
            ["--callers", "1", "--think", "9", "--duration", "1", "--run-time", "1"],
            "no request arrives in 1 s; raise --duration",
        ),
        (["--run-time", "1", "absent.csv"], "can't read absent.csv"),
        ([*CONSTANT, "--run-time", "soon"], "a run time is written like 0.002+0.00005n"),
        ([*CONSTANT, "--option", "max_batch_size=0"], "max_batch_size must be at least 1, not 0"),
        ([*CONSTANT, "--option", "levels=2"], "'levels' is not an option of a batcher"),
        ([*CONSTANT, "--option", "overload=never"], "overload must be 'reject'"),
        (["--rate", "1", "--duration", "0.001", "--run-time", "1"], "no request arrives in 0.001"),
        ([*CONSTANT, "--compare", "max_batch_size"], "an option is written KEY=VALUE"),
        ([*CONSTANT, "--backend", "x"], "--backend is for a file that `shoal trace` has recorded"),
        ([*CONSTANT, "--plot", "plot.words"], "no plot in plot.words"),
        (
            [*CONSTANT, "--plot", "absent/plot.png"],
            "no plot in absent/plot.png: [Errno 2]",
        ),
        (
            [*CONSTANT, "--run-time", "1", "--option", "request_timeout_s=0.1", "--plot", "x.png"],
            "no plot in x.png: there is nothing to draw: no request was answered",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments, line, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told(*arguments, code=2)
    assert told.err.startswith("shoal: ")
    assert line in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--rate", "0"], ["--rate", "x"], ["--duration", "inf"], ["--jitter", "-1"]]
)
def test_a_number_that_is_none_is_told(arguments, told):
    told(*arguments, code=2)
    assert told.err.endswith("see shoal simulate --help\n")


RECORDED = [
    {"record": "trace", "format": 1},
    {
        "record": "batcher",
        "batcher": "small",
        "options": {"max_batch_size": 2, "batch_wait_timeout_s": 0.5},
        "functions": ["policy", "pad"],
    },
    *(
        line
        for number in range(10)
        for line in (
            {
                "record": "batch",
                "batcher": "small",
                "batch": number,
                "at": number + 0.1,
                "run_s": 0.01,
                "size": 2,
                "load": 2,
                "reason": "full",
            },
            {"at": number, "batcher": "small", "batch": number, "took_s": 0.11},
            {"at": number + 0.1, "batcher": "small", "batch": number, "took_s": 0.01},
        )
    ),
    {"record": "end", "lost": 5, "unfinished": 1},
]


@pytest.fixture
def recorded(tmp_path):
    def recorded(*more, without=None):
        lines = [line for line in RECORDED if line.get("record", "request") != without]
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, *more]))
        return str(path)

    return recorded


def test_a_recording_has_its_options_and_run_times(told, recorded):
    text = told(recorded())
    assert "run time  10 ms + 0 s an item, as measured" in text
    assert "today: max_batch_size=2, batch_wait_timeout_s=0.5" in text
    table = {line[:16].strip(): line[16:].split() for line in text.splitlines()}
    assert table["compared"] == ["recorded", "today"]
    assert table["batches"] == ["10", "10"]
    assert table["because full"] == ["100%", "100%"]
    assert table["latency p99"] == ["110", "ms", "110", "ms"]
    assert "In effect, but not simulated: policy." in text
    assert "5 lines (20%) could not be recorded" in text
    assert "1 request had not finished when the recording ended" in text
    assert told.err == ""


def test_a_guess_is_said_to_be_one(told, recorded):
    text = told(recorded(), "--option", "max_batch_size=8", "--option", "batch_wait_timeout_s=5")
    assert "Batches of up to 8 are simulated, but none larger than 2 was measured" in text


def test_another_backend_of_a_recording_can_be_chosen(told, recorded):
    path = recorded({"at": 1, "batcher": "other"})
    told(path)
    assert told.err == "simulated is small; --backend NAME selects another: other\n"
    text = told(path, "--backend", "other", "--run-time", "1")
    assert text.startswith("traffic   1 requests of other")
    told(path, "--backend", "third", code=2)
    assert "has no requests for third; it has those for small, other" in told.err


@pytest.mark.parametrize(
    ("without", "more", "line"),
    [
        ("batch", [], "of batches that are closed and have ended"),
        (
            None,
            [{"record": "batcher", "batcher": "small", "options": {}, "open": True}],
            "of batches that are closed and have ended",
        ),
    ],
)
def test_a_run_time_is_needed_where_none_was_recorded(told, recorded, without, more, line):
    path = recorded(*more, without=without)
    told(path, code=2)
    assert line in told.err
    assert "recorded" in told(path, "--run-time", "0.01")


def test_other_traces_need_a_run_time(told, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("at\n1\n2\n")
    told(str(path), code=2)
    assert "give the run time of a batch of n items" in told.err


def test_made_traffic_can_be_compared_too(told):
    data = told(*CONSTANT, "--json", "--compare", "max_batch_size=1")
    assert [one["name"] for one in data["compared"]] == ["these options", "A"]


def test_a_terminal_without_unicode_gets_escapes():
    words = ["--callers", "4", "--run-time", "0.00001", "--duration", "0.1"]
    with redirect_stdout(TextIOWrapper(BytesIO(), "ascii")) as out:
        assert main(["simulate", *words, "--option", "max_batch_size=4"]) == 0
    out.seek(0)
    assert r"\xb5s" in out.read()
