"""Options as they are written on a command line."""

from __future__ import annotations

import pytest

from shoal.commands.support.mistake import CommandError
from shoal.commands.support.values import config_of, json_of, value_of, weights_of


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
    assert config_of(texts) == {
        "num_replicas": 2,
        "autoscaling": {"max_replicas": 4, "min_replicas": 1},
    }


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
