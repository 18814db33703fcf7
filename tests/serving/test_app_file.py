"""Reading an application's file: what it declares, and what is said of each mistake."""

from textwrap import dedent

import pytest

from shoal.core.traffic import Shadow
from shoal.replicas.code.definition import Definition
from shoal.serving.app_file.file import read_app_file
from shoal.serving.app_file.flaws import AppFileRefused, lines_of_keys, written
from shoal.serving.backend_config import BackendConfig
from shoal.serving.names import DEFAULT_METHODS
from shoal.serving.state_records import EndpointRecord

WHOLE = """\
[server]
host = "::1"
port = 9000
answer_timeout_s = "none"

[backends.small]
code = "models:Small"
init_args = ["small.onnx", 3]
init_kwargs = { threads = 2 }
placement = "process"
num_replicas = 2
batch_wait_timeout = 0.01
max_queued_requests = "none"
user_config = "none"

[backends.small.autoscaling]
max_replicas = 4

[backends.large]
code = "models:large"
placement = "models:Pool"
placement_options = { zone = "a", slots = [1, 2] }

[endpoints.classify]
route = "/classify"
methods = ["get", "POST"]
traffic = { small = 0.9, large = 0.1 }

[[endpoints.classify.shadows]]
backend = "large"
proportion = 0.5
compare = "models:alike"

[endpoints.by-hand]
backend = "large"

[endpoints.later]
route = "/later"
traffic = {}
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(text):
        (tmp_path / "app.toml").write_text(dedent(text))
        return read_app_file("app.toml")

    return read


@pytest.fixture
def flaws_of(read):
    def flaws_of(text):
        with pytest.raises(AppFileRefused) as refused:
            read(text)
        return str(refused.value).splitlines()

    return flaws_of


def test_a_file_is_read(read):
    app = read(WHOLE)
    assert app.server == {"host": "::1", "port": 9000, "answer_timeout_s": None}
    own = {"placement": "models:Pool", "placement_options": {"zone": "a", "slots": [1, 2]}}
    assert app.backends["large"] == (Definition("models:large"), BackendConfig(**own))
    small, config = app.backends["small"]
    assert small == Definition("models:Small", ("small.onnx", 3), (("threads", 2),))
    assert config.placement == "process"
    assert config.batching["batch_wait_timeout_s"] == 0.01
    assert config.batching["max_queued_requests"] is None
    assert config.user_config == "none"
    assert config.autoscaling.max_replicas == 4
    assert app.endpoints == {
        "classify": EndpointRecord(
            name="classify",
            route="/classify",
            methods=("GET", "POST"),
            traffic={"small": 0.9, "large": 0.1},
            shadows={"large": Shadow(0.5, compare="models:alike")},
        ),
        "by-hand": EndpointRecord(name="by-hand", methods=DEFAULT_METHODS, traffic={"large": 1.0}),
        "later": EndpointRecord(name="later", route="/later", methods=DEFAULT_METHODS),
    }


def test_an_empty_file_declares_nothing(read):
    app = read("")
    assert (app.server, app.backends, app.endpoints) == ({}, {}, {})


BACKEND = '[backends.b]\ncode = "m:b"\n'
ENDPOINT = f'{BACKEND}[endpoints.e]\nbackend = "b"\n'
TRAFFIC = f"{BACKEND}[endpoints.e]\n"
SHADOW = f"{ENDPOINT}[[endpoints.e.shadows]]\n"
WHOLE_SHADOW = f"{SHADOW}backend = 'b'\nproportion = 1\n"


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        # the file
        ("a = ", "app.toml:1: is not TOML: Invalid value"),
        ("\n[a\n", "app.toml:2: is not TOML: Expected ']' at the end of a table declaration"),
        ("a = 1\n\n\na = 2\n", "app.toml:4: is not TOML: Cannot overwrite a value"),
        ("a = '''\n\nb", "app.toml:3: is not TOML: Expected "),
        ("[backend.b]", "app.toml:1: backend: there is no such key; did you mean 'backends'?"),
        (
            "\nzzz = 1",
            "app.toml:2: zzz: there is no such key; there are server, backends, endpoints",
        ),
        ("backends = 1", "app.toml:1: backends: must be a table, as [backends], not 1"),
        ("[[endpoints]]", "app.toml:1: endpoints: must be a table, as [endpoints], not [{}]"),
        ("endpoints.e = 3", "app.toml:1: endpoints.e: must be a table, as [endpoints.e], not 3"),
        ("server = 'x'", "app.toml:1: server: must be a table, as [server], not 'x'"),
        ("[backends]\nb = 3", "app.toml:2: backends.b: must be a table, as [backends.b], not 3"),
        # [server]: test_option_tables.py has a wrong value of each
        ("[server]\nport = 65536", "2: server.port: port must be from 0 to 65535, not 65536"),
        ("[server]\nHost = 'a'", "2: server.Host: there is no such key; did you mean 'host'?"),
        ("server.debug = 1", "1: server.debug: debug must be True or False, not 1"),
        ("server = { send_timeout_s = 0 }", "1: server.send_timeout_s: send_timeout_s must be "),
        # [backends.TAG]
        ("[backends.b]", '1: backends.b: has no code; write code = "package.module:Name"'),
        ("[backends.b]\ncode = 3", '2: backends.b.code: must be text, as "package.module:Name"'),
        ("[backends.b]\ncode = 'm'", "2: backends.b.code: 'm' is not an import path; write it "),
        (
            '[backends."a b"]\ncode = "m:b"',
            "1: backends.\"a b\": 'a b' can't be a backend's tag: a name has 1 to 64",
        ),
        (f"{BACKEND}init_args = 'x'", '3: backends.b.init_args: must be an array, as ["small", 2]'),
        (f"{BACKEND}init_kwargs = [1]", "3: backends.b.init_kwargs: must be a table, as {size = "),
        (f"{BACKEND}init_args = [1, 1979-05-27]", "3: backends.b.init_args: init_args[1] can't be"),
        (f"{BACKEND}num_replica = 2", "3: backends.b.num_replica: there is no such key; did you "),
        (f"{BACKEND}xyzzy = 2", "3: backends.b.xyzzy: there is no such key; shoal.BackendConfig "),
        (f"{BACKEND}num_replicas = 'none'", "3: backends.b.num_replicas: num_replicas must be a "),
        (f"{BACKEND}python = 'python3'", "3: backends.b.python: python is for placement='process'"),
        (
            f"{BACKEND}placement_options = {{ zone = 'a' }}",
            "3: backends.b.placement_options: placement_options is for a placement of your own; ",
        ),
        (
            f"{BACKEND}max_ongoing_requests = 1\nmax_concurrent_queries = 2",
            "3: backends.b.max_ongoing_requests: max_ongoing_requests is given twice, as 1 and",
        ),
        (
            f"{BACKEND}max_concurrent_queries = 0",
            "3: backends.b.max_concurrent_queries: max_ongoing_requests must be at least 1, not 0",
        ),
        (
            f"{BACKEND}autoscaling = {{ max_replicas = 2 }}\nnum_replicas = 5",
            "4: backends.b.num_replicas: num_replicas=5 must be from min_replicas=1 to ",
        ),
        (
            f"{BACKEND}[backends.b.autoscaling]\ntarget_ongoing_requests = 1\nmax_replicas = 0",
            "5: backends.b.autoscaling.max_replicas: max_replicas must be at least 1, not 0",
        ),
        (f"{BACKEND}queue_policies.1.timeout_s = -1", "3: backends.b.queue_policies.1.timeout_s: "),
        (f"{BACKEND}bucket_by = 'x'", "3: backends.b.bucket_by: bucket_by: 'x' is not an import"),
        # [endpoints.NAME]
        (TRAFFIC, '3: endpoints.e: has no backend; write backend = "TAG", or traffic = '),
        (f"{ENDPOINT}traffic.b = 1", "3: endpoints.e: has both backend and traffic; leave one out"),
        (f"{TRAFFIC}backend = 'c'", "4: endpoints.e.backend: there is no backend 'c'; there are"),
        ("[endpoints.e]\nbackend = 1", "2: endpoints.e.backend: there is no backend 1; there are"),
        (f"{TRAFFIC}traffic.c = 1", "4: endpoints.e.traffic.c: there is no backend 'c'; there"),
        (f"{TRAFFIC}traffic = {{ b = 0.5 }}", "4: endpoints.e.traffic: the weights of traffic"),
        (f"{TRAFFIC}traffic.b = 'all'", "4: endpoints.e.traffic: the weight of b must be a number"),
        (f"{TRAFFIC}traffic = 1", "4: endpoints.e.traffic: must be a table, as "),
        (f"{ENDPOINT}route = 'e'", '5: endpoints.e.route: a path must start with "/", and '),
        (f"{ENDPOINT}route = '/-/x'", "5: endpoints.e.route: '/-/x': the paths under /-/ are "),
        (f"{ENDPOINT}methods = 'GET'", "5: endpoints.e.methods: methods must be a list, not 'GET'"),
        (f"{ENDPOINT}methods = ['GO']", "5: endpoints.e.methods: 'GO' is not a method; there are "),
        (f"{ENDPOINT}method = ['GET']", "5: endpoints.e.method: there is no such key; did you "),
        (
            f"{ENDPOINT}route = '/{{a}}'\n[endpoints.f]\nbackend = 'b'\nroute = '/{{b}}'",
            "8: endpoints.f.route: GET /{b} is answered by the endpoint 'e' already, on line 3",
        ),
        # [[endpoints.NAME.shadows]]
        (f"{ENDPOINT}shadows = 1", "5: endpoints.e.shadows: must be an array of tables, as "),
        (f"{ENDPOINT}shadows = [1]", "5: endpoints.e.shadows[0]: must be a table, as "),
        (f"{SHADOW}proportion = 0.1", "5: endpoints.e.shadows[0]: has no backend; write backend "),
        (f"{SHADOW}backend = 'b'", "5: endpoints.e.shadows[0]: has no proportion; write backend "),
        (
            f"{SHADOW}proportion = 1\nbackend = 'c'",
            "7: endpoints.e.shadows[0].backend: there is no",
        ),
        (f"{SHADOW}backend = 'b'\nproportion = 2", "7: endpoints.e.shadows[0].proportion: the"),
        (f"{WHOLE_SHADOW}compare = 'm'", "8: endpoints.e.shadows[0].compare: 'm' is not an import"),
        (f"{WHOLE_SHADOW}compare = 1", "8: endpoints.e.shadows[0].compare: must be text, as "),
        (
            f"{WHOLE_SHADOW}[[endpoints.e.shadows]]\nbackend = 'b'\nproportion = 1",
            "9: endpoints.e.shadows[1].backend: 'b' has a shadow of this endpoint already",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(text, flaw, flaws_of):
    (told,) = flaws_of(text)
    assert flaw in told
    assert told.startswith("app.toml:")


def test_all_mistakes_are_told_at_once_in_the_order_of_the_lines(flaws_of):
    told = flaws_of(
        """\
        [endpoints.e]
        route = "e"
        backend = "c"

        [backends.b]
        code = "m"
        num_replicas = 0
        max_batch_size = 0
        colour = "blue"

        [server]
        port = -1
        """
    )
    assert [line.split(": ")[:2] for line in told] == [
        ["app.toml:2", "endpoints.e.route"],
        ["app.toml:3", "endpoints.e.backend"],
        ["app.toml:6", "backends.b.code"],
        ["app.toml:7", "backends.b.num_replicas"],
        ["app.toml:8", "backends.b.max_batch_size"],
        ["app.toml:9", "backends.b.colour"],
        ["app.toml:12", "server.port"],
    ]


def test_an_option_that_needs_a_refused_one_is_not_told(flaws_of):
    (told,) = flaws_of(f'{BACKEND}placement = "proces"\npython = "/usr/bin/python3"')
    assert "backends.b.placement" in told


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(AppFileRefused, match=r"app.toml: can't be read: No such file"):
        read_app_file(tmp_path / "app.toml")


def test_a_file_in_another_encoding_is_told_with_its_line(tmp_path):
    (tmp_path / "app.toml").write_bytes(b"# a\n# caf\xe9\n")
    with pytest.raises(AppFileRefused, match=r"app.toml:2: is not in UTF-8"):
        read_app_file(tmp_path / "app.toml")


KEYS = r'''# a comment with [brackets] = and "quotes"
top = 1 # a.b = 2
"quoted key" = "a # b"
'literal = key'.inner = 'c:\path\'
"esc\u0041ped\"" = """
[not.a.table]
nor = "a key" \
"""
literal = \'\'\'
[not.either]
\'\'\'
quotes = """a"""""
literal_quotes = \'\'\'a\'\'\'\'\'
empty = ""
dotted . key.s = 1979-05-27 07:32:00
dotted.key.t = [ # a comment, with ] in it
  1, "]", [ 2,
    { x = 1, y.z = [3] } ],
]
inline = { a = { b = 1 }, "c d" = "}" }
nothing = []
void = {}

[table]
a = 1e5
[table.sub."dotted.name"]
a = inf
[[rows]]
a = 1
[[rows.inner]]
b = 1
[[rows.inner]]
b = 2
[rows.one]
c = 1
[[rows]]
[[rows.inner]]
b = 3
'''.replace(r"\'", "'")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("top",), "top = 1"),
        (("quoted key",), '"quoted key"'),
        (("literal = key", "inner"), "'literal = key'.inner"),
        (('escAped"',), r'"esc\u0041ped'),
        (("literal",), "literal = '''"),
        (("empty",), 'empty = ""'),
        (("dotted",), "dotted . key.s"),
        (("dotted", "key", "s"), "dotted . key.s"),
        (("dotted", "key", "t"), "dotted.key.t"),
        (("table",), "[table]"),
        (("table", "sub"), "[table.sub."),
        (("table", "sub", "dotted.name", "a"), "a = inf"),
        (("rows",), "[[rows]]"),
        (("rows", 0), "[[rows]]"),
        (("rows", 0, "inner", 1), "[[rows.inner]]"),
        (("rows", 0, "inner", 1, "b"), "b = 2"),
        (("rows", 0, "one", "c"), "c = 1"),
        (("rows", 1, "inner", 0, "b"), "b = 3"),
    ],
)
def test_a_key_is_found_on_its_line(path, text):
    line = lines_of_keys(KEYS)[path]
    assert KEYS.splitlines()[line - 1].startswith(text)


def test_the_second_row_of_an_array_of_tables_stands_on_its_own_line():
    lines = lines_of_keys(KEYS)
    texts = KEYS.splitlines()
    first, second = (at + 1 for at, text in enumerate(texts) if text == "[[rows]]")
    assert (lines["rows", 0], lines["rows", 1]) == (first, second)


@pytest.mark.parametrize(
    ("path", "text"),
    [((), ""), (("a", "b-c", 0, "d"), "a.b-c[0].d"), (("a b", "1", "é"), '"a b".1."é"')],
)
def test_a_path_is_written_as_in_a_header(path, text):
    assert written(path) == text
