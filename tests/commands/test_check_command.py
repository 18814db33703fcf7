"""`shoal check`: what would run, and what is wrong with it."""

import json
import sys

import pytest

from handlers import app_of, double
from shoal import App
from shoal.cli import main

WHOLE = """\
[server]
port = 9000

[backends.twice]
code = "driven_models:Scaler"
init_args = [2]
num_replicas = 2
max_batch_size = 4

[backends.one]
code = "driven_models:add_one"
placement = "thread"
autoscaling = { max_replicas = 3 }

[backends.open]
code = "driven_models:of_open_batches"
fill = "open"

[backends.elsewhere]
code = "not.here:Model"
placement = "process"
python = "/opt/other/bin/python"

[endpoints.count]
route = "/count"
traffic = { twice = 0.75, one = 0.25 }

[[endpoints.count.shadows]]
backend = "one"
proportion = 0.5
compare = "driven_models:alike"

[endpoints.later]
traffic = {}
"""
ROUTED = '\n[endpoints.e]\nroute = "/e"\nbackend = "b"'
SHADOWED = f'{ROUTED}\n[[endpoints.e.shadows]]\nbackend = "b"\nproportion = 0.5'
BESIDE = """\
import shoal
from {module} import double

app = shoal.App()
app.endpoint("/double")(double)
other = shoal.App()
"""


@pytest.fixture
def check(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)

    def check(text, *options):
        (tmp_path / "app.toml").write_text(text)
        return run("check", "app.toml", *options)

    return check


def test_what_would_run_is_shown(check):
    code, out, err = check(WHOLE)
    assert (code, err) == (0, "")
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "BACKEND CODE TAKES PLACEMENT REPLICAS OPTIONS",
        "twice driven_models:Scaler lists of up to 4 int task 2 max_batch_size=4",
        "one driven_models:add_one one int at a time thread 1 to 3 -",
        "open driven_models:of_open_batches open batches of up to 10 items task 1 fill='open'",
        "elsewhere not.here:Model ? process 1 python='/opt/other/bin/python'",
        "",
        "ENDPOINT ROUTE METHODS TRAFFIC SHADOWS",
        "count /count GET,POST twice 75%, one 25% one 50%",
        "later - GET,POST held -",
    ]


def test_what_would_run_is_json_for_machines(check):
    code, out, _ = check(WHOLE, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["server"] == {"port": 9000}
    assert told["backends"]["twice"]["takes"] == "lists of up to 4 int"
    assert told["backends"]["one"]["config"]["autoscaling"]["max_replicas"] == 3
    assert told["endpoints"]["count"] == {
        "route": "/count",
        "methods": ["GET", "POST"],
        "traffic": {"twice": 0.75, "one": 0.25},
        "shadows": {"one": {"proportion": 0.5, "compare": "driven_models:alike"}},
    }


def test_an_empty_file_would_run_nothing(check):
    assert check("") == (0, "no backends\n\nno endpoints\n", "")


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ('code = "absent_module:f"', "2: backends.b.code: 'absent_module:f': there is no module"),
        ('code = "driven_models:absent"', "2: backends.b.code: 'driven_models:absent': "),
        ('code = "driven_models:number"', "2: backends.b.code: a backend is a function, a class "),
        ('code = "broken_models:f"', "2: backends.b.code: importing it failed: LookupError: bad"),
        (
            'code = "driven_models:Scaler"\ninit_args = [1, 2, 3]',
            "3: backends.b.init_args: Scaler can't be instantiated with init_args=[1, 2, 3] and",
        ),
        (
            'code = "driven_models:add_one"\ninit_args = [1]',
            "2: backends.b.code: init args are for classes, and add_one is not a class: (1,)",
        ),
        (
            'code = "driven_models:add_one"\nmax_batch_size = 4',
            "3: backends.b.max_batch_size: max_batch_size=4 is for code that takes lists",
        ),
        (
            'code = "driven_models:Scaler"\nbucket_by = "driven_models:absent"',
            "3: backends.b.bucket_by: 'driven_models:absent': driven_models has no attribute ",
        ),
        (
            f'code = "driven_models:unreadable"{ROUTED}',
            "2: backends.b.code: the annotation of 'items' of <function unreadable at",
        ),
        (
            f'code = "driven_models:add_one"{SHADOWED}\ncompare = "driven_models:number"',
            "6: endpoints.e.shadows: 'driven_models:number' is not a function, but 3",
        ),
    ],
)
def test_what_is_wrong_with_the_code_is_told_with_its_line(text, flaw, check, tmp_path):
    (tmp_path / "broken_models.py").write_text("raise LookupError('bad day')")
    code, out, err = check(f"[backends.b]\n{text}")
    assert (code, out) == (2, "")
    assert err.startswith(f"shoal: app.toml:{flaw}")
    assert err.count("\n") == 1


def test_all_that_is_wrong_is_told_in_the_order_of_the_lines(check):
    code, _, err = check(
        '[endpoints.e]\nbackend = "b"\n[[endpoints.e.shadows]]\nbackend = "b"\nproportion = 1\n'
        'compare = "driven_models:number"\n'
        '[backends.b]\ncode = "driven_models:absent"\n'
        '[backends.c]\ncode = "driven_models:number"'
    )
    assert code == 2
    assert [line.split(": ")[:2] for line in err.splitlines()] == [
        ["shoal", "app.toml:3"],
        ["shoal", "app.toml:8"],
        ["shoal", "app.toml:10"],
    ]


def test_the_flaws_of_a_file_are_told_before_its_code_is_imported(check):
    code, _, err = check("[backends.b]\ncode = 3\n[server]\nport = -1")
    assert code == 2
    assert "app.toml:2: backends.b.code" in err
    assert "app.toml:4: server.port" in err


def test_what_is_hardly_meant_is_said(check):
    code, out, err = check(
        '[backends.b]\ncode = "driven_models:Scaler"\nmax_batch_size = 8\nmax_ongoing_requests = 2'
    )
    assert code == 0
    assert err.startswith("backends.b: max_ongoing_requests=2 is below max_batch_size")
    assert "driven_models:Scaler" in out


app = app_of(double, "/double", max_batch_size=8)
wrong = App()
wrong.backend("b", "driven_models:absent")


async def other(scope, receive, send):
    """An application that is none of ours."""


def test_an_application_of_a_module_is_checked(capsys):
    assert main(["check", f"{__name__}:app"]) == 0
    out = capsys.readouterr().out.splitlines()
    backend = "double double lists of up to 8 int task 1 max_batch_size=8"
    assert out[1].split() == backend.split()
    assert out[4].split() == ["double", "/double", "GET,POST", "double", "100%", "-"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong", "shoal: backends.b.code: 'driven_models:absent'"),
        ("other", f"shoal: {__name__}:other is not a shoal.App: there is nothing to check"),
    ],
)
def test_a_wrong_application_of_a_module_is_told(name, said, mistake):
    assert mistake("check", f"{__name__}:{name}", code=2).startswith(said)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A directory with applications, which is not the current one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    directory = tmp_path / "elsewhere"
    package = directory / "a_package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    for made in (directory, package):
        (made / "beside_it.py").write_text(
            "def double(items: list[int]) -> list[int]:\n    return [2 * one for one in items]\n"
        )
    (package / "__init__.py").write_text("")
    (package.parent / "__init__.py").write_text("")
    (directory / "of_app.py").write_text(BESIDE.format(module="beside_it"))
    (package / "of_package.py").write_text(BESIDE.format(module=".beside_it"))
    (directory / "app.toml").write_text(
        '[backends.double]\ncode = "beside_it:double"\n'
        '[endpoints.double]\nroute = "/double"\nbackend = "double"\n'
    )
    return directory


@pytest.mark.parametrize(
    "application", ["of_app.py", "of_app.py:app", "a_package/inner/of_package.py", "app.toml"]
)
@pytest.mark.parametrize("is_relative", [True, False])
def test_an_application_is_found_with_modules_beside_it(
    application, is_relative, elsewhere, capsys, tmp_path
):
    (tmp_path / "current" / "beside_it.py").write_text("double = None\n")
    path = f"../elsewhere/{application}" if is_relative else str(elsewhere / application)
    assert main(["check", path]) == 0
    assert "  /double  " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("service = shoal.App()\nagain = service\n", "no endpoints"),
        ("app = shoal.App()\nother = shoal.App()\n", "no endpoints"),
        (
            "one = shoal.App()\ntwo = shoal.App()\n",
            "shoal: {file} has several applications; name one: {file}:one, {file}:two\n",
        ),
        ("", "shoal: {file} has no shoal.App; name your application: {file}:NAME\n"),
    ],
)
def test_the_application_of_a_file_may_have_any_name(code, said, elsewhere, capsys):
    file = elsewhere / "of_name.py"
    file.write_text(f"import shoal\n{code}")
    main(["check", str(file)])
    captured = capsys.readouterr()
    assert said.format(file=file) in captured.out + captured.err


def test_a_module_that_is_not_there_is_told_with_where_it_was_looked_for(elsewhere, mistake):
    (elsewhere / "app.toml").write_text('[backends.b]\ncode = "absent_module:b"\n')
    told = mistake("check", str(elsewhere / "app.toml"), code=2)
    directories = f"{elsewhere}, {elsewhere.parent / 'current'}"
    assert f"there is no module 'absent_module' in {directories}" in told


def test_calls_that_run_at_once_are_not_shown_as_one_at_a_time(check):
    code, out, _ = check(
        '[backends.some]\ncode = "driven_models:add_one"\nmax_ongoing_requests = 8\n'
        '[backends.all]\ncode = "driven_models:add_one"\nmax_concurrent_batches = "none"\n',
        "--json",
    )
    takes = [one["takes"] for one in json.loads(out)["backends"].values()]
    assert code == 0
    assert takes == ["one int a call, up to 8 calls at once", "one int a call, any number at once"]
