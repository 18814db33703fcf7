"""Tables of options, of batches, backends and servers: documented, checked and refused alike."""

import ast
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import shoal
from shoal.asgi.http_options import (
    APP_OPTIONS,
    FILE_OPTIONS,
    HTTP_OPTIONS,
    AppKeywords,
    HttpOptions,
    ServerKeywords,
)
from shoal.core.addresses import FORMS
from shoal.core.options.option import defaults_of
from shoal.core.options.options import OPTIONS, BatchOptions
from shoal.core.options.records import Cache, LatencyTarget, Limit, Models, QueuePolicy
from shoal.core.replicas.autoscaling import AutoscalingOptions
from shoal.serving.app_file.file import read_app_file
from shoal.serving.app_file.flaws import AppFileRefused
from shoal.serving.backend_config import BackendConfig
from shoal.serving.backend_options import one_at_a_time

OF_BATCHES: dict[str, Any] = {
    "max_batch_size": 4,
    "max_batch_cost": 4,
    "batch_wait_timeout_s": 0.1,
    "idle_timeout_s": 0.1,
    "batch_size_fn": len,
    "allowed_batch_sizes": (2, 4),
    "preferred_batch_sizes": (2, 4),
    "regather": False,
    "pad": lambda items, n: items,
    "split": lambda item, room: [item],
    "join": lambda results: results,
}


@pytest.mark.parametrize("name", OF_BATCHES)
def test_an_option_of_batches_is_refused_for_code_of_one_item(name):
    with pytest.raises(ValueError, match=f"{name}=.* is for code that takes lists"):
        one_at_a_time({name: OF_BATCHES[name]})


def test_all_other_options_are_not():
    assert {name for name, option in OPTIONS.items() if option.for_lists} == set(OF_BATCHES)
    assert one_at_a_time({"stream_buffer": 2}) == {"stream_buffer": 2, "max_batch_size": 1}


PAGES = Path(__file__).parents[2] / "docs" / "reference"


def documented(page):
    """The defaults by option, of all tables that have them: ``| `a`, `b` | 1, `None` | ...``."""
    found = {}
    for line in (PAGES / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) < 3 or not re.fullmatch(r"`\w+`(, `\w+`)*", cells[0]):
            continue
        names = re.findall(r"`(\w+)`", cells[0])
        defaults = cells[1].split(", ")
        if len(defaults) < len(names):  # one for all
            defaults = [cells[1]] * len(names)
        for name, default in zip(names, defaults, strict=True):
            found.setdefault(name, default.partition(";")[0].strip("`"))
    return found


def value_of(text):
    in_words = {"the middle one": None, "none": {}}
    return in_words[text] if text in in_words else ast.literal_eval(text)


BATCH = defaults_of(BatchOptions)
BACKEND = {n: one for n, one in BackendConfig().as_dict().items() if n not in BATCH}
AUTOSCALING = dataclasses.asdict(AutoscalingOptions())


@pytest.mark.parametrize("name", BATCH)
def test_batch_options(name):
    assert value_of(documented("options.md")[name]) == BATCH[name]


@pytest.mark.parametrize("name", BACKEND)
def test_backend_options(name):
    assert value_of(documented("backend-config.md")[name]) == BACKEND[name]


@pytest.mark.parametrize("name", AUTOSCALING)
def test_autoscaling_options(name):
    assert value_of(documented("backend-config.md")[name]) == AUTOSCALING[name]


def test_no_page_has_an_option_that_does_not_exist():
    autoscaling, ours = AUTOSCALING.keys(), {*BATCH, *BACKEND}
    assert documented("backend-config.md").keys() <= autoscaling | ours
    records = (QueuePolicy, LatencyTarget, Cache, Limit, Models)
    fields = {one.name for record in records for one in dataclasses.fields(record)}
    assert documented("options.md").keys() <= fields | ours


def test_the_defaults_are_those_that_are_documented():
    assert dataclasses.asdict(HttpOptions()) == {
        "host": "127.0.0.1",
        "port": 8000,
        "uds": None,
        "uds_mode": "600",
        "fd": None,
        "middlewares": (),
        "token": None,
        "admin_socket": None,
        "model_server": None,
        "model_server_token_file": None,
        "allowed_modules": (),
        "allowed_hosts": (),
        "allowed_origins": (),
        "graceful_timeout_s": 20.0,
        "max_connections": 1000,
        "keep_alive_timeout_s": 5.0,
        "head_timeout_s": 10.0,
        "max_head_bytes": 2**15,
        "max_headers": 128,
        "max_target_bytes": 2**14,
        "body_timeout_s": 10.0,
        "ping_interval_s": 7.0,
        "max_message_bytes": 16 * 2**20,
        "certfile": None,
        "keyfile": None,
        "access_log": False,
        "root_path": "",
        "trusted_peers": (),
        "proxy_headers": ("x-forwarded-for", "x-forwarded-proto"),
        "max_body_bytes": 16 * 2**20,
        "max_incomplete_bytes": 256 * 2**20,
        "max_json_elements": 2**18,
        "send_timeout_s": 10.0,
        "answer_timeout_s": 60.0,
        "heartbeat_s": 15.0,
        "max_websocket_requests": 64,
        "sse_done": False,
        "overload_status": 503,
        "retry_after_s": 1,
        "server_timing": "never",
        "debug": False,
        "protocols": (),
        "openapi": True,
        "landing_page": True,
        "dashboard": None,
        "title": "Shoal",
        "version": "0.1.0",
        "security_schemes": {},
        "security": (),
    }


def test_every_option_has_its_check():
    names = {field.name for field in dataclasses.fields(HttpOptions)}
    assert names - HTTP_OPTIONS.keys() == {"token"}, "whose value no message may show"


def test_every_option_is_documented_in_its_order():
    documented = re.findall(r"^        (\w+): ", HttpOptions.__doc__, re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(HttpOptions)]


def test_the_keywords_of_an_application_are_the_last_fields_with_their_types():
    fields = get_type_hints(HttpOptions, localns={"ASGIApp": Any})
    assert list(APP_OPTIONS) == list(fields)[-len(APP_OPTIONS) :]
    assert get_type_hints(AppKeywords) == {name: fields[name] for name in APP_OPTIONS}


def test_the_keywords_of_a_server_are_its_fields_with_their_types():
    fields = get_type_hints(HttpOptions, localns={"ASGIApp": Any})
    of_start = {"middlewares", "token", "admin_socket", "allowed_modules"}
    of_start |= {"model_server", "model_server_token_file"}
    of_server = (
        fields.keys()
        - (set(APP_OPTIONS) - {"send_timeout_s", "allowed_hosts", "allowed_origins"})
        - of_start
    )
    assert get_type_hints(ServerKeywords) == {name: fields[name] for name in of_server}


@pytest.fixture
def refusals(tmp_path):
    """Each way to give an option, with the value refused: the error's type and its message."""

    def refusals(name: str, value: Any) -> list[str]:
        ways = [lambda: HttpOptions(**{name: value}), lambda: HttpOptions.of({name: value})]
        if name in APP_OPTIONS:
            ways.append(lambda: shoal.App(**{name: value}))
        messages = []
        for way in ways:
            with pytest.raises((TypeError, ValueError)) as refused:
                way()
            messages.append(f"{refused.type.__name__}: {refused.value}")
        if name in FILE_OPTIONS and value is not None:
            file = tmp_path / "app.toml"
            written = "nan" if value is math.nan else str(value)
            written = json.dumps(value) if isinstance(value, bool | str | list) else written
            file.write_text(f"[server]\n{name} = {written}")
            with pytest.raises(AppFileRefused) as found:
                read_app_file(file)
            assert str(found.value) == f"{file}:2: server.{name}: {messages[0].split(': ', 1)[1]}"
        return messages

    return refusals


WRONG = [
    ("host", 5, TypeError, 'must be text, such as "127.0.0.1", not 5'),
    ("host", "", TypeError, "must be text, such as \"127.0.0.1\", not ''"),
    ("port", "80", TypeError, "must be a whole number, not '80'"),
    ("port", True, TypeError, "must be a whole number, not True"),
    ("port", -1, ValueError, "must be at least 0, not -1"),
    ("port", 65536, ValueError, "must be from 0 to 65535, not 65536"),
    ("uds", 5, TypeError, 'must be text, such as "/run/shoal.sock", not 5'),
    ("uds_mode", 660, TypeError, 'must be text, such as "660", not 660'),
    ("uds_mode", "rw", ValueError, "must be three octal digits, such as \"660\", not 'rw'"),
    ("uds_mode", "060", ValueError, "must be three octal digits, such as \"660\", not '060'"),
    ("fd", -1, ValueError, "must be at least 0, not -1"),
    ("fd", "3", TypeError, "must be a whole number, not '3'"),
    ("middlewares", 5, TypeError, "must be a list, not 5"),
    ("token", b"s3cret", TypeError, "must be text, not bytes"),
    ("admin_socket", 5, TypeError, 'must be text, such as "/run/shoal.sock", not 5'),
    ("allowed_modules", "m", TypeError, "must be a list, not 'm'"),
    ("allowed_hosts", "a", TypeError, "must be a list, not 'a'"),
    ("allowed_origins", "a", TypeError, "must be a list, not 'a'"),
    ("head_timeout_s", 0, ValueError, "must be more than 0 seconds, not 0"),
    ("body_timeout_s", 0, ValueError, "must be more than 0 seconds, not 0"),
    ("ping_interval_s", 0, ValueError, "must be more than 0 seconds, not 0"),
    ("max_head_bytes", 0, ValueError, "must be at least 1, not 0"),
    ("max_headers", 0, ValueError, "must be at least 1, not 0"),
    ("max_target_bytes", 0, ValueError, "must be at least 1, not 0"),
    ("max_message_bytes", 0, ValueError, "must be at least 1, not 0"),
    ("model_server", "m:9", ValueError, f"must be {FORMS}, not 'm:9'"),
    ("model_server_token_file", 5, TypeError, 'must be text, such as "/run/secrets/models", not 5'),
    ("certfile", 5, TypeError, 'must be text, such as "cert.pem", not 5'),
    ("keyfile", 5, TypeError, 'must be text, such as "key.pem", not 5'),
    ("root_path", 5, TypeError, 'must be text, such as "/models", not 5'),
    ("trusted_peers", "a", TypeError, "must be a list, not 'a'"),
    ("proxy_headers", "a", TypeError, "must be a list, not 'a'"),
    ("max_incomplete_bytes", 0, ValueError, "must be at least 1, not 0"),
    ("graceful_timeout_s", -1, ValueError, "must be at least 0 seconds, not -1"),
    (
        "graceful_timeout_s",
        math.inf,
        ValueError,
        "must be finite: inf would wait for stuck work for ever",
    ),
    ("max_connections", 0, ValueError, "must be at least 1, not 0"),
    ("keep_alive_timeout_s", 0, ValueError, "must be more than 0 seconds, not 0"),
    ("access_log", 1, TypeError, "must be True or False, not 1"),
    ("max_body_bytes", "1", TypeError, "must be a whole number, not '1'"),
    ("max_body_bytes", 0, ValueError, "must be at least 1, not 0"),
    ("max_json_elements", 0, ValueError, "must be at least 1, not 0"),
    ("send_timeout_s", 0, ValueError, "must be more than 0 seconds, not 0"),
    ("send_timeout_s", None, TypeError, "must be a number of seconds, not None"),
    ("answer_timeout_s", math.nan, ValueError, "must be more than 0 seconds, not nan"),
    ("heartbeat_s", True, TypeError, "must be a number of seconds, not True"),
    ("overload_status", 500, ValueError, "must be 503 or 429, not 500"),
    ("max_websocket_requests", 0, ValueError, "must be at least 1, not 0"),
    ("sse_done", "yes", TypeError, "must be True or False, not 'yes'"),
    ("retry_after_s", 1.5, TypeError, "must be a whole number, not 1.5"),
    ("server_timing", True, ValueError, "must be 'never', 'asked' or 'always', not True"),
    ("debug", "yes", TypeError, "must be True or False, not 'yes'"),
    ("protocols", "v2", TypeError, "must be a list, not 'v2'"),
    (
        "protocols",
        ["opanai"],
        ValueError,
        "must name protocols (oip, openai), not 'opanai'; did you mean 'openai'?",
    ),
    ("openapi", "no", TypeError, "must be True or False, not 'no'"),
    ("landing_page", 0, TypeError, "must be True or False, not 0"),
    ("dashboard", "yes", TypeError, "must be True or False, not 'yes'"),
    ("title", "", TypeError, "must be text, such as \"Embeddings\", not ''"),
    ("version", 2, TypeError, 'must be text, such as "1.2.0", not 2'),
    (
        "security_schemes",
        "key",
        TypeError,
        (
            'must be a mapping such as {"key": {"type": "apiKey", "in": "header", '
            '"name": "X-API-Key"}}, not \'key\''
        ),
    ),
    (
        "security",
        5,
        TypeError,
        (
            'must map schemes to lists of scopes, such as {"key": []}, or be a list of such '
            "mappings, not 5"
        ),
    ),
]


@pytest.mark.parametrize(("name", "value", "error", "says"), WRONG, ids=repr)
def test_a_wrong_value_is_refused_with_one_message_wherever_it_is_given(
    refusals, name, value, error, says
):
    assert set(refusals(name, value)) == {f"{error.__name__}: {name} {says}"}


def test_a_wrong_value_of_every_option_is_tested():
    assert {name for name, *_ in WRONG} == {one.name for one in dataclasses.fields(HttpOptions)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model_server": "tcp://0.0.0.0:9"}, "is not encrypted, and leaves this machine"),
        ({"model_server": "tcp://models:9"}, "or plain-tcp://models:9 if you trust the network"),
        ({"model_server": "tls://0.0.0.0:9"}, "needs certfile, a certificate"),
        ({"model_server": "tcp://[::1]:9"}, "needs model_server_token_file: whoever can connect"),
        ({"model_server": "plain-tcp://0.0.0.0:9"}, "needs model_server_token_file"),
        ({"model_server": "unix:"}, "has no path"),
        ({"model_server_token_file": "token"}, "has no effect without model_server"),
    ],
)
def test_a_model_server_is_protected(options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        HttpOptions(**options)


def test_a_file_that_needs_a_scheme_which_it_does_not_describe_is_refused(tmp_path):
    file = tmp_path / "app.toml"
    file.write_text("[server]\nsecurity = [{key = []}]")
    with pytest.raises(AppFileRefused, match=r"app.toml:2: server.security: .* scheme 'key'"):
        read_app_file(file)
    file.write_text(
        "[server]\nsecurity = [{key = []}]\n"
        "[server.security_schemes.key]\ntype = 'http'\nscheme = 'basic'"
    )
    assert read_app_file(file).server["security"] == ({"key": []},)


def test_none_is_no_limit_of_an_answer():
    assert HttpOptions(answer_timeout_s=None).answer_timeout_s is None


def test_one_server_has_one_address():
    with pytest.raises(ValueError, match="two addresses"):
        HttpOptions(uds="/x", fd=3)


def test_the_token_is_not_shown():
    assert "s3cret" not in repr(HttpOptions(token="s3cret"))
