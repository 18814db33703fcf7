"""The commands that drive a server, against one in this process, and what they say meanwhile."""

import io
import json
import re
import signal
import sys
from argparse import Namespace

import anyio
import pytest
from driven_server import served

from shoal.cli import main
from shoal.commands.server import client as connecting
from shoal.serving.clients.remote_client import RemoteClient

pytestmark = pytest.mark.real_time


@pytest.fixture
def shoal(run):
    """Runs a command against an empty server."""

    def shoal(*arguments):
        code, out, err = run(*arguments, "--url", url)
        return code, out.rstrip("\n"), err

    with served() as url:
        yield shoal


@pytest.fixture
def done(shoal):
    """Runs a command that goes well; gives its output."""

    def done(*arguments):
        code, out, err = shoal(*arguments)
        assert (code, err) == (0, "")
        return out

    return done


@pytest.fixture
def refused(shoal):
    """Runs a command that is refused; gives its exit code and the one line that says why."""

    def refused(*arguments):
        code, out, err = shoal(*arguments)
        assert out == ""
        assert err.startswith("shoal: ")
        assert err.count("\n") == 1
        return code, err.removeprefix("shoal: ").rstrip("\n")

    return refused


def cells(table):
    return [re.split(r"  +", line) for line in table.splitlines()]


def wait_for_both_replicas(done):
    """A backend was created when its first replica was ready."""
    while "2/2" not in done("backends", "list"):
        pass


def test_an_empty_server_says_that_it_is(done):
    assert done("status") == "no backends\n\nno endpoints"
    assert done("backends", "list") == "no backends"
    assert done("endpoints", "list") == "no endpoints"
    empty = {"backends": {}, "endpoints": {}, "gpus": {}, "model_server": None}
    assert json.loads(done("status", "--json")) == empty


def test_a_backend_is_created_shown_and_deleted(done):
    create = ["backends", "create", "twice", "driven_models:Scaler"]
    assert done(*create, "max_batch_size=4", "num_replicas=2") == "created the backend twice"
    wait_for_both_replicas(done)
    heads, row = cells(done("backends", "list"))
    shown = dict(zip(heads, row, strict=True))
    assert shown["BACKEND"] == "twice"
    assert shown["CODE"] == "driven_models:Scaler"
    assert (shown["PLACEMENT"], shown["STATE"], shown["READY"]) == ("task", "ready", "2/2")
    assert done("backends", "config", "twice") == "max_batch_size=4\nnum_replicas=2"
    config = json.loads(done("backends", "config", "twice", "--json"))
    assert config == {"max_batch_size": 4, "num_replicas": 2}
    listed = json.loads(done("backends", "list", "--json"))
    assert listed["twice"]["replicas"][1]["tag"] == "twice#1"
    assert done("backends", "delete", "twice", "--force") == "deleted the backend twice"
    assert done("backends", "list") == "no backends"


@pytest.mark.parametrize(
    "words",
    [
        "b driven_models:Scaler --arg 3 retries=1 --kwarg plus=10 user_config.a=x",
        "--arg=3 b --kwarg=plus=10 driven_models:Scaler retries=1 user_config.a=x",
        "b --kwarg plus=10 driven_models:Scaler retries=1 --arg 3 user_config.a=x",
    ],
)
def test_options_and_arguments_come_in_any_order(words, done):
    done("backends", "create", *words.split())
    config = json.loads(done("backends", "config", "b", "--json"))
    assert config == {"retries": 1, "user_config": {"a": "x"}}
    done("endpoints", "create", "e", "--backend", "b")
    assert done("call", "--timeout", "5", "e", "--json", "5") == "25"


def test_options_are_changed_while_it_runs(done):
    done("backends", "create", "b", "driven_models:Scaler", "user_config.a=1", "retries=1")
    done("backends", "update", "b", "max_batch_size=7", "user_config.a=2", "idle_timeout_s=none")
    assert json.loads(done("backends", "config", "b", "--json")) == {
        "user_config": {"a": 2},
        "retries": 1,
        "max_batch_size": 7,
        "idle_timeout_s": None,
    }


@pytest.mark.parametrize("command", [["scale"], ["backends", "scale"]])
def test_a_backend_is_scaled(command, done):
    done("backends", "create", "b", "driven_models:add_one")
    assert done(*command, "b", "3") == "scaled the backend b to 3"
    assert len(json.loads(done("backends", "list", "--json"))["b"]["replicas"]) == 3


def test_replicas_are_replaced(done):
    done("backends", "create", "b", "driven_models:add_one")
    assert done("backends", "restart", "b") == "restarted the backend b"
    (replica,) = json.loads(done("backends", "list", "--json"))["b"]["replicas"]
    assert replica["tag"] == "b#1"


def test_an_endpoint_is_created_shown_and_deleted(done):
    done("backends", "create", "b", "driven_models:add_one")
    create = ["endpoints", "create", "e", "--route", "/e", "--backend", "b"]
    assert done(*create, "--method", "get", "--method", "POST") == "created the endpoint e"
    assert cells(done("endpoints", "list"))[1][:5] == ["e", "/e", "GET,POST", "b 100%", "-"]
    assert json.loads(done("endpoints", "list", "--json"))["e"]["route"] == "/e"
    assert done("endpoints", "delete", "e") == "deleted the endpoint e"
    assert done("endpoints", "list") == "no endpoints"


def test_an_endpoint_without_a_backend_holds_its_requests_until_traffic_is_set(done):
    done("backends", "create", "b", "driven_models:add_one")
    done("endpoints", "create", "e")
    assert cells(done("endpoints", "list"))[1][:4] == ["e", "-", "GET,POST", "held"]
    assert done("traffic", "set", "e", "b=1") == "traffic of e: b 100%"
    assert done("call", "e", "1") == "2"


def test_traffic_is_divided_and_copied_in_shares_of_any_form(done):
    done("backends", "create", "a", "driven_models:add_one")
    done("backends", "create", "b", "driven_models:Scaler")
    done("endpoints", "create", "e", "--backend", "a")
    for shares in (("a=88", "b=12"), ("a=88%", "b=12%"), ("a=0.88", "b=12%"), ("a=88.0", "b=12")):
        assert done("traffic", "set", "e", *shares) == "traffic of e: a 88%, b 12%"
        listed = json.loads(done("endpoints", "list", "--json"))
        assert listed["e"]["traffic"] == {"a": 0.88, "b": 0.12}
    assert done("traffic", "set", "e", "a=100") == "traffic of e: a 100%"
    assert done("traffic", "set", "e", "a=12.5%", "b=87.5%") == "traffic of e: a 12.5%, b 87.5%"
    assert done("shadow", "show") == "no shadow traffic"
    change = ["shadow", "set", "e", "b"]
    compare = ["--compare", "driven_models:alike"]
    assert done(*change, "5%", *compare) == "shadow traffic of e: b 5%"
    assert done(*change, "0.25", *compare) == "shadow traffic of e: b 25%"
    assert cells(done("endpoints", "list"))[1][3:5] == ["a 12.5%, b 87.5%", "b 25%"]
    heads, row = cells(done("shadow", "show", "e"))
    shown = dict(zip(heads, row, strict=True))
    assert (shown["BACKEND"], shown["SHARE"], shown["SENT"]) == ("b", "25%", "0")
    assert shown["COMPARE"] == "driven_models:alike"
    assert json.loads(done("shadow", "show", "--json"))["e"][0]["dropped"] == 0
    assert done(*change, "0") == "no shadow traffic of e to b"
    assert cells(done("endpoints", "list"))[1][4] == "-"


def test_shadows_of_an_endpoint_that_is_not_there_are_refused(done, refused):
    done("endpoints", "create", "e")
    assert refused("shadow", "show", "g") == (1, "there is no endpoint 'g'; there are: e")


def test_status_shows_replicas_and_figures(done):
    done("backends", "create", "b", "driven_models:Scaler", "num_replicas=2")
    done("endpoints", "create", "e", "--route", "/e", "--backend", "b")
    done("call", "e", "1")
    wait_for_both_replicas(done)
    backends, replicas, endpoints = map(cells, done("status").split("\n\n"))
    assert backends[1][0] == "b"
    assert backends[1][7] == "1"
    assert [row[:2] for row in replicas[1:]] == [["b#0", "ready"], ["b#1", "ready"]]
    assert endpoints[1][6] == "1"


@pytest.mark.parametrize(
    ("code", "arguments", "answer"),
    [
        ("add_one", ["1"], "2"),
        ("greet", ['"you"'], "hello you!"),
        ("greet", ['"you"', "--json"], '"hello you!"'),
        ("greet", ['"you"', "--kwarg", "mark=?"], "hello you?"),
        ("greet", ["--kwarg", "name=you"], "hello you!"),
        ("Scaler", ["4", "--shard-key", "k", "--timeout", "10", "--priority", "1"], "8"),
        ("Scaler", ["4", "--method-name", "count", "--stream"], "0\n1"),
    ],
)
def test_a_call_prints_its_answer(code, arguments, answer, done):
    done("backends", "create", "b", f"driven_models:{code}")
    done("endpoints", "create", "e", "--backend", "b")
    assert done("call", "e", *arguments) == answer


def test_a_call_of_a_stream_says_how_to_ask_for_one(done, refused):
    done("backends", "create", "b", "driven_models:Scaler")
    done("endpoints", "create", "e", "--backend", "b")
    code, line = refused("call", "e", "4", "--method-name", "count")
    assert (code, line.partition("; ")[2]) == (2, "add --stream")


def test_a_call_takes_its_item_from_stdin(done, monkeypatch):
    done("backends", "create", "b", "driven_models:add_one")
    done("endpoints", "create", "e", "--backend", "b")
    monkeypatch.setattr("sys.stdin", io.StringIO("41\n"))
    assert done("call", "e", "-") == "42"


def test_changes_are_confirmed_as_json_for_machines(done):
    create = ["backends", "create", "b", "driven_models:add_one", "--json"]
    assert json.loads(done(*create)) == {"done": "created the backend b"}


@pytest.mark.parametrize(
    ("code", "arguments", "line"),
    [
        (1, ["backends", "config", "c"], "there is no backend 'c'; there are: b"),
        (1, ["backends", "create", "b", "driven_models:add_one"], "there is a backend 'b' already"),
        (1, ["backends", "create", "c", "os:getcwd"], "'os:getcwd': the operator did not allow "),
        (2, ["backends", "create", "c", "driven_models"], "'driven_models' is not an import path"),
        (2, ["backends", "create", "c d", "driven_models:add_one"], "'c d' can't be a backend's"),
        (1, ["backends", "create", "c", "driven_models:absent"], "driven_models has no attribute"),
        (1, ["backends", "create", "c", "driven_models:Scaler", "--arg=1", "--arg=2", "--arg=3"],
         "takes from 1 to 3 positional arguments"),
        (2, ["backends", "update", "b", "retry=1"], "'retry' is not an option of a backend"),
        (2, ["backends", "update", "b", "retries=-1"], "retries must be at least 0, not -1"),
        (2, ["backends", "update", "b", "retries"], "an option is written KEY=VALUE, like"),
        (1, ["backends", "delete", "b"], "the backend 'b' gets traffic of e; send that elsewhere"),
        (1, ["endpoints", "create", "e", "--backend", "b"], "there is an endpoint 'e' already"),
        (2, ["endpoints", "create", "f", "--route", "f"], 'a path must start with "/"'),
        (2, ["endpoints", "create", "f", "--method", "GO"], "'GO' is not a method"),
        (1, ["endpoints", "delete", "f"], "there is no endpoint 'f'; there are: e"),
        (1, ["traffic", "set", "e", "c=1"], "there is no backend 'c' to send traffic to"),
        (2, ["traffic", "set", "e", "b=0.5"], "the weights of traffic must sum to 1, not to 0.5"),
        (2, ["traffic", "set", "e", "b"], "traffic is written BACKEND=WEIGHT, like small=0.9"),
        (2, ["traffic", "set", "e", "b=half"], "like small=0.9 or small=90%, not 'b=half'"),
        (2, ["traffic", "set", "e", "b=99"], "the weights of traffic must sum to 1, not to 99"),
        (2, ["shadow", "set", "e", "b", "2"], "a proportion is a number from 0 to 1, or like 5%, "),
        (2, ["shadow", "set", "e", "b", "half"], "from 0 to 1, or like 5%, not 'half'"),
        (1, ["shadow", "set", "e", "b", "1", "--compare", "os:fspath"], "the operator did not "),
        (2, ["call", "e", "one"], "'one' is not JSON: "),
        (1, ["call", "e", "1", "2"], "TypeError: "),
        (2, ["call", "e", "1", "--stream"], "gives one result; leave out --stream"),
        (1, ["call", "e", "13"], "ValueError: 13 is not welcome"),
        (1, ["call", "e", "1", "--method-name", "absent"], "the backend has no method 'absent'"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_in_one_line(code, arguments, line, with_an_endpoint, mistake):
    assert line in mistake(*arguments, "--url", with_an_endpoint, code=code)


@pytest.fixture(scope="module")
def with_an_endpoint():
    """A server with an endpoint, which nothing changes that is refused."""
    with served() as url:
        assert main(["backends", "create", "b", "driven_models:Scaler", "--url", url]) == 0
        assert main(["endpoints", "create", "e", "--backend", "b", "--url", url]) == 0
        yield url


def test_a_token_is_asked_for_and_taken(tmp_path, mistake):
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("s3cret\n")
    wrong.write_text("guess")
    with served(token="s3cret") as url:
        asked = ("status", "--url", url)
        assert "Send Authorization: Bearer" in mistake(*asked)
        assert "The token is wrong" in mistake(*asked, "--token-file", str(wrong))
        assert main(["status", "--url", url, "--token-file", str(token)]) == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [("", "a token must consist of"), ("a b", "a token must consist of"), (None, "can't")],
)
def test_a_wrong_token_file_is_told(text, line, tmp_path, mistake):
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    given = ("--url", "http://127.0.0.1:1", "--token-file", str(path))
    assert line in mistake("status", *given, code=2)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "default.sock; start one with `shoal start --detach`"),
        (["--name", "x"], "x.sock; start one with `shoal start --detach --name x`"),
        (["--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1; start one "),
    ],
)
def test_a_missing_server_is_told_with_its_remedy(arguments, line, tmp_path, monkeypatch, mistake):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert line in mistake("status", *arguments)


def test_a_url_that_is_none_is_a_mistake(mistake):
    assert mistake("status", "--url", "somewhere", code=2) == (
        "shoal: 'somewhere' is not a server's URL; write http://127.0.0.1:8000 or "
        "unix:/run/shoal.sock\n"
    )


def test_a_server_without_the_admin_api_is_told(mistake):
    with served(token="s3cret") as url:
        assert "there is no admin API at" in mistake("status", "--url", f"{url}/elsewhere")


@pytest.fixture
def arguments(monkeypatch):
    monkeypatch.setattr(connecting, "_PATIENCE_S", 0.0)
    with served() as url:
        yield Namespace(url=url, name="default", token_file=None)


def test_on_a_terminal_a_slow_verb_tells_what_it_waits_for(arguments, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    told = []

    async def until_told(client):
        is_told = anyio.Event()

        def say(line):
            told.append(line)
            is_told.set()

        monkeypatch.setattr(connecting, "say", say)
        with anyio.move_on_after(1):
            await is_told.wait()
        return await client.list_backends()

    assert connecting.ask(arguments, until_told) == {}
    assert told == ["waiting for the server to answer ..."]


def test_elsewhere_nothing_is_told(arguments, monkeypatch):
    told = []
    monkeypatch.setattr(connecting, "say", told.append)

    async def verb(client):
        for _ in range(3):
            await client.list_backends()

    connecting.ask(arguments, verb, waits_for="a replica of b")
    assert told == []


def test_ctrl_c_ends_it_in_silence(monkeypatch, capsys):
    async def status(client):
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr(connecting, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(RemoteClient, "status", status)
    assert main(["status", "--url", "http://server"]) == 130
    assert capsys.readouterr() == ("", "")
