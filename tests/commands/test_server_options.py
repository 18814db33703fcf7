"""The flags of the commands that serve, and the commands and files that the documentation shows.

The flags are made from the table of the options.
"""

import os
import re
import shlex
from argparse import ArgumentError, ArgumentParser
from pathlib import Path

import pytest

from shoal.asgi.http_options import FILE_OPTIONS, FLAGGED, HttpOptions
from shoal.cli import _parser
from shoal.commands.server import options
from shoal.commands.server.options import add_server_options, process_options, server_options
from shoal.commands.support.output import CommandError
from shoal.serving.app_file.file import read_app_file
from shoal.serving.app_file.server import NOT_ON_HYPERCORN

FLAGS = [
    ("--host", "::1", "host", "::1", "(127.0.0.1)"),
    ("--host", "5", "host", "5", "(127.0.0.1)"),
    ("--port", "0", "port", 0, "(8000)"),
    ("--graceful-timeout", "2.5", "graceful_timeout_s", 2.5, "(20)"),
    ("--max-connections", "7", "max_connections", 7, "(1000)"),
    ("--keep-alive-timeout", "75", "keep_alive_timeout_s", 75.0, "(5)"),
    ("--head-timeout", "2", "head_timeout_s", 2.0, "(10)"),
    ("--max-head-bytes", "2", "max_head_bytes", 2, "(32768)"),
    ("--max-headers", "2", "max_headers", 2, "(128)"),
    ("--max-target-bytes", "2", "max_target_bytes", 2, "(16384)"),
    ("--body-timeout", "2", "body_timeout_s", 2.0, "(10)"),
    ("--ping-interval", "2", "ping_interval_s", 2.0, "(7)"),
    ("--max-message-bytes", "2", "max_message_bytes", 2, "(16777216)"),
    ("--uds", "/x", "uds", "/x", "host and port"),
    ("--uds-mode", "660", "uds_mode", "660", "(600)"),
    ("--model-server", "unix:/m.sock", "model_server", "unix:/m.sock", "this user can open"),
    ("--certfile", "c.pem", "certfile", "c.pem", "at host and port"),
    ("--allow-host", "a", "allowed_hosts", ["a"], "repeatable (none)"),
    ("--allow-origin", "x://a", "allowed_origins", ["x://a"], "repeatable (none)"),
    ("--send-timeout", "3", "send_timeout_s", 3.0, "(10)"),
    (
        "--access-log",
        None,
        "access_log",
        True,
        "whether each request is logged, by the logger shoal.access",
    ),
    ("--root-path", "/ml", "root_path", "/ml", 'the paths of requests, such as "/models"'),
    ("--trusted-peer", "10.0.0.0/8", "trusted_peers", ["10.0.0.0/8"], "(none)"),
    (
        "--proxy-header",
        "x-forwarded-host",
        "proxy_headers",
        ["x-forwarded-host"],
        "repeatable (x-forwarded-for, x-forwarded-proto)",
    ),
]
DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def parser():
    parser = ArgumentParser(exit_on_error=False)
    add_server_options(parser)
    return parser


def test_every_flag_is_tested():
    assert {name for _, _, name, _, _ in FLAGS} | {"keyfile", "model_server_token_file"} == {
        *FLAGGED
    }


@pytest.mark.parametrize(("flag", "text", "name", "value", "default"), FLAGS)
def test_a_flag_sets_its_option_and_goes_before_the_file(parser, flag, text, name, value, default):
    given = parser.parse_args([flag] if text is None else [flag, text])
    assert server_options(given, {name: object()}) == HttpOptions(**{name: value})
    [shown] = [one.help for one in parser._actions if flag in one.option_strings]
    assert shown.endswith(default)


def test_a_key_goes_with_its_certificate(parser):
    given = parser.parse_args(["--certfile", "c.pem", "--keyfile", "k.pem"])
    assert server_options(given, {}) == HttpOptions(certfile="c.pem", keyfile="k.pem")


def test_a_key_without_a_certificate_is_a_mistake_in_the_command(parser):
    with pytest.raises(CommandError, match=r"keyfile='k\.pem' needs certfile") as raised:
        server_options(parser.parse_args(["--keyfile", "k.pem"]), {})
    assert raised.value.exit_code == 2


def test_what_is_not_given_is_that_of_the_file_or_the_default(parser):
    given = parser.parse_args([])
    assert server_options(given, {}) == HttpOptions()
    in_file = {"port": 1, "answer_timeout_s": None, "event_loop": "asyncio"}
    assert server_options(given, in_file) == HttpOptions(port=1, answer_timeout_s=None)
    assert process_options(given, in_file)["event_loop"] == "asyncio"
    assert process_options(given, {})["event_loop"] == "trio"


def test_what_is_for_the_operator_is_among_the_options(parser, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    words = ["--token-file", f"{tmp_path}/token", "--allow-module", "a", "--allow-module", "b"]
    arguments = parser.parse_args(words)
    arguments.admin_socket = f"{tmp_path}/admin.sock"
    found = server_options(arguments, {})
    assert found == HttpOptions(
        token="s3cret", allowed_modules=["a", "b"], admin_socket=f"{tmp_path}/admin.sock"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trusted-peer", "10.0.0"], "not '10.0.0': '10.0.0' does not appear to be"),
        (["--port", "65536"], "port must be from 0 to 65535, not 65536"),
        (["--port", "http"], "port must be a whole number, not 'http'"),
        (
            ["--graceful-timeout", "inf"],
            "graceful_timeout_s must be finite: inf would wait for stuck work for ever",
        ),
        (["--keep-alive-timeout", "0"], "keep_alive_timeout_s must be more than 0 seconds, not 0"),
        (["--max-connections", "none"], "max_connections must be a whole number, not 'none'"),
        (["--workers", "0"], "workers must be at least 1"),
        (["--workers", "257"], "workers must be at most 256, not 257"),
        (["--workers", "many"], "workers must be a whole number or \"auto\", not 'many'"),
    ],
)
def test_a_wrong_value_is_told_as_in_a_file(parser, words, message):
    with pytest.raises(ArgumentError, match=message):
        parser.parse_args(words)


@pytest.mark.parametrize(("text", "value"), [(".5", 0.5), ("5.", 5.0), ("+5", 5.0), ("007", 7.0)])
def test_a_number_may_be_written_as_python_reads_it(parser, text, value):
    words = ["--send-timeout", text, "--graceful-timeout", text]
    found = server_options(parser.parse_args(words), {})
    assert (found.send_timeout_s, found.graceful_timeout_s) == (value, value)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a machine of 8 cores, or another number, with these limits of control groups."""

    def machine(limits, cgroup=None, cores=8):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(options, "Path", lambda path: tmp_path / path.lstrip("/"))
        for group, limit in limits.items():
            folder = tmp_path / "sys/fs/cgroup" / group
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cpu.max").write_text(limit)
        if cgroup is not None:
            (tmp_path / "proc/self").mkdir(parents=True)
            (tmp_path / "proc/self/cgroup").write_text(cgroup)

    return machine


OUTER, INNER = "outer.slice", "outer.slice/inner.slice"
NESTED = f"1:name=systemd:/\n0::/{INNER}\n"


@pytest.mark.parametrize(
    ("cores", "limits", "cgroup", "count"),
    [
        (8, {}, None, 7),  # no container
        (1, {}, None, 1),
        (8, {"": "max 100000\n"}, None, 7),  # no limit
        (8, {"": "200000 50000\n"}, None, 3),  # the time of four cores
        (8, {"": "390000 100000\n"}, None, 2),  # a part of a core is none
        (8, {"": "50000 100000\n"}, None, 1),  # half a core
        (2, {"": "400000 100000\n"}, None, 1),  # more than there are
        (8, {"": "\n"}, None, 7),
        (8, {}, NESTED, 7),
        (8, {INNER: "300000 100000\n"}, NESTED, 2),  # as of systemd's CPUQuota=300%
        (8, {OUTER: "300000 100000\n", INNER: "max 100000\n"}, NESTED, 2),
        (8, {"": "300000 100000\n", INNER: "500000 100000\n"}, NESTED, 2),
        (8, {"": "300000 100000\n", INNER: "200000 100000\n"}, "0::/\n", 2),
        (8, {INNER: "200000 100000\n"}, "0::/other.slice\n", 7),
        (8, {OUTER: "200000 100000\n"}, "4:cpu:/outer.slice\n", 7),  # of version 1
        (8, {"": "300000 100000\n"}, "", 2),
    ],
)
def test_auto_is_one_worker_for_each_other_core_within_the_limits_of_all_control_groups(
    parser, machine, cores, limits, cgroup, count
):
    machine(limits, cgroup, cores)
    assert process_options(parser.parse_args(["--workers", "auto"]), {})["workers"] == count
    assert process_options(parser.parse_args([]), {"workers": "auto"})["workers"] == count


@pytest.mark.parametrize(
    ("words", "in_file", "count"),
    [(["--workers", "5"], {"workers": "auto"}, 5), ([], {"workers": 5}, 5), ([], {}, None)],
)
def test_a_number_of_workers_is_not_bound_by_the_limit(parser, machine, words, in_file, count):
    machine({"": "200000 100000\n"})
    assert process_options(parser.parse_args(words), in_file)["workers"] == count


def commands():
    for name, page in PAGES.items():
        for language, body in FENCE.findall(page):
            prompt = "$ " if language == "console" else ""
            if language in {"console", "sh", "bash", "shell"}:
                for line in body.replace("\\\n", " ").splitlines():
                    if line.startswith(f"{prompt}shoal "):
                        words = shlex.split(line.removeprefix(prompt), comments=True)
                        yield pytest.param(words[1:], id=f"{name}: {line}")


def files():
    for name, page in PAGES.items():
        for language, body in FENCE.findall(page):
            if language == "toml" and "[backends." in body:
                yield pytest.param(body, id=name)


@pytest.mark.parametrize("words", list(commands()))
def test_a_documented_command_is_understood(words):
    assert callable(_parser(words).parse_args(words).run)


@pytest.mark.parametrize("text", list(files()))
def test_a_documented_file_is_right(text, tmp_path):
    (tmp_path / "app.toml").write_text(text)
    assert read_app_file(tmp_path / "app.toml").backends


def test_the_options_that_hypercorn_lacks_are_documented():
    page = PAGES["how-to/run-in-production.md"]
    [lacks] = re.findall(
        r"^`--server hypercorn` does not support (.*?)\.", page, re.MULTILINE | re.DOTALL
    )
    flags = {f"--{name.removesuffix('_s').replace('_', '-')}" for name in NOT_ON_HYPERCORN}
    assert set(re.findall("`(.*?)`", lacks)) == flags


def test_every_option_of_a_server_is_documented():
    page = PAGES["reference/command-line.md"]
    [keys] = re.findall(r"^\| `\[server\]` \| (.*) \|$", page, re.MULTILINE)
    named = set(re.findall("`(?!shoal)([a-z_]+)`", keys))
    assert named == {"event_loop", "server", "workers", *FILE_OPTIONS}
    for name in FILE_OPTIONS:
        if name in FLAGGED:
            value = getattr(HttpOptions, name)
            flag = f"--{name.removesuffix('_s').replace('_', '-')}"
            if isinstance(value, tuple):
                flag = flag.replace("allowed", "allow").removesuffix("s")
            row = rf"^\| `{flag}(?: [A-Z]+)?` \| (.*?) ?\|"
            [default] = re.findall(row, page, re.MULTILINE)
            if value in ((), None, ""):
                continue
            if value and isinstance(value, tuple):
                assert default.lower().replace("`", "") == ", ".join(value)
                continue
            assert default.strip("`") == (
                "off" if value is False else f"{value}".removesuffix(".0")
            )
