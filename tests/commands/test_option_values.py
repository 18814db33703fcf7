"""Options, weights, items and run times as they are written on a command line."""

import pytest

from shoal.commands.support.output import CommandError
from shoal.commands.support.values import (
    config_of,
    json_of,
    option_pairs,
    run_time,
    value_of,
    weights_of,
)
from shoal.core.options.records import LatencyTarget, Limit, QueuePolicy
from shoal.core.simulation_results import Linear


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("priority_levels=3", "priority_levels", 3),
        ("batch_wait_timeout_s=0.005", "batch_wait_timeout_s", 0.005),
        ("batch_wait_timeout_s=none", "batch_wait_timeout_s", None),
        ("overload=wait", "overload", "wait"),
        ("isolate_errors=true", "isolate_errors", True),
        ("max_queued_requests=none", "max_queued_requests", None),
        ("max_batch_size=1,000", "max_batch_size", "1,000"),
        ("allowed_batch_sizes=[8,16]", "allowed_batch_sizes", [8, 16]),
        ('adaptive={"p99_s": 0.1}', "adaptive", LatencyTarget(p99_s=0.1)),
        ('limit={"batches_per_s": 5}', "limit", Limit(batches_per_s=5)),
        ("limit.batches_per_s=5", "limit", Limit(batches_per_s=5)),
        ('default_queue_policy={"timeout_s": 1}', "default_queue_policy", QueuePolicy(timeout_s=1)),
        ('queue_policies={"2": {"timeout_s": 1}}', "queue_policies", {2: QueuePolicy(timeout_s=1)}),
    ],
)
def test_an_option_of_a_batcher_is_read(text, name, value):
    assert option_pairs([text]) == {name: value}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("priority_levels", "an option is written KEY=VALUE, like num_replicas=2, "),
        ("levels=3", "'levels' is not an option of a batcher; did you mean 'priority_levels'"),
        ("bucket_by=x", "bucket_by is a function: give it to @shoal.batch; a simulation reads "),
        ('adaptive={"p98_s": 1}', "adaptive has no 'p98_s'"),
        ('limit={"batches_per_s": 0}', "limit: batches_per_s must be above 0"),
        ('queue_policies={"1": {"p": 1}}', r"queue_policies\[1\] has no 'p'"),
    ],
)
def test_what_is_no_option_is_told(text, complaint):
    with pytest.raises(CommandError, match=complaint):
        option_pairs([text])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.005", 0.005),
        ("true", True),
        ("none", None),
        ("process", "process"),
        ("/opt/venv/bin/python", "/opt/venv/bin/python"),
        ("my_models:pad", "my_models:pad"),
        ("", ""),
        ('"3"', "3"),
        ("'none'", "none"),
        ("[[0, 1], [2]]", [[0, 1], [2]]),
        ("{ p99_s = 0.1 }", {"p99_s": 0.1}),
        ('{"p99_s": 0.1}', {"p99_s": 0.1}),
        ("[1, null]", [1, None]),
        ("8,16", "8,16"),
        ("True", "True"),
        ("a b", "a b"),
    ],
)
def test_a_value_is_read_as_in_a_file_and_a_word_as_text(text, value):
    read = value_of(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1, 2", "'[1, 2' is not a TOML value: "),
        ('"a', "is not a TOML value"),
        ("1\nb = 2", "more than"),
    ],
)
def test_a_value_that_only_begins_like_toml_is_refused(text, line):
    with pytest.raises(CommandError) as mistake:
        value_of(text)
    assert line in str(mistake.value)


def test_dots_lead_into_tables():
    texts = ["num_replicas=2", "autoscaling.max_replicas=4", "autoscaling.min_replicas=1"]
    tables = {"autoscaling": {"max_replicas": 4, "min_replicas": 1}}
    assert config_of(texts) == {"num_replicas": 2, **tables}


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["a"], "an option is written KEY=VALUE, like num_replicas=2, not 'a'"),
        (["=1"], "an option is written KEY=VALUE"),
        (["a..b=1"], "an option is written KEY=VALUE"),
        (["a=1", "a=2"], "a=2: a is already given, as 1"),
        (["a=1", "a.b=2"], "a.b=2: a is already given, as 1"),
        (["a.b=1", "a=2"], "a=2: a is already given, as {'b': 1}"),
    ],
)
def test_options_of_another_form_are_refused(texts, line):
    with pytest.raises(CommandError) as mistake:
        config_of(texts)
    assert line in str(mistake.value)
    assert mistake.value.exit_code == 2


def test_weights_are_read():
    assert weights_of(["a=0.9", "b:c=.1"]) == {"a": 0.9, "b:c": 0.1}


def test_weights_that_sum_to_100_are_percentages():
    assert weights_of(["a=99.9", "b=0.1"]) == {"a": 99.9 / 100, "b": 0.1 / 100}


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a="], ["a=most"], ["a=1", "a=0"]])
def test_weights_of_another_form_are_refused(texts):
    with pytest.raises(CommandError):
        weights_of(texts)


def test_what_is_not_json_is_told_shortened():
    with pytest.raises(CommandError, match=r"^'x{60}\.\.\.' is not JSON: .*quotes"):
        json_of("x" * 100)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("0.002+0.00005n", Linear(0.002, 0.00005)),
        ("0.00005n+0.002", Linear(0.002, 0.00005)),
        ("2e-3 + 5e-5 n", Linear(0.002, 0.00005)),
        ("1e+1 + .5*n", Linear(10, 0.5)),
        ("0.1", Linear(0.1, 0)),
        ("0.1s", Linear(0.1, 0)),
        ("0.5n", Linear(0, 0.5)),
        ("n", Linear(0, 1)),
    ],
)
def test_a_run_time_is_read(text, model):
    assert run_time(text) == model


def test_the_jitter_of_a_run_time_goes_along():
    assert run_time("1", jitter=0.1, seed=2) == Linear(1, 0, jitter=0.1, seed=2)


@pytest.mark.parametrize("text", ["", "n+n", "1+2", "-1", "2ms", "0.1+", "n2", "1e999", "nan", "x"])
def test_anything_else_is_told_how_a_run_time_is_written(text):
    with pytest.raises(CommandError, match=r"written like 0\.002\+0\.00005n"):
        run_time(text)


def test_a_run_time_of_0_is_refused():
    with pytest.raises(CommandError, match="must take some time"):
        run_time("0+0n")
