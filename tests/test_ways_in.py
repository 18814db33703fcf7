"""One rule for lists and items: the same code is given the same by every way in.

`docs/how-to/parameters-per-request.md` says the rule; each row here is some code, and what it gets.
The ways are `shoal.batch` and `shoal.Batcher`, whose code takes lists, and those of code that is
served: `app.endpoint`, `app.backend`, `create_backend`, an application's file.
"""

import inspect
import json
from dataclasses import dataclass
from typing import Any

import pytest

import shoal
import ways_in_code as code
from serving.scenes import deployed
from shoal.cli import main
from shoal.serving.app_file.file import read_app_file
from shoal.testing.asgi import ask

pytest.importorskip("numpy")
pytestmark = [pytest.mark.one_loop, pytest.mark.real_time]

NO_LIST = "a handler gets a list for each of its parameters"
NO_NAMES = "must be named"
NO_RESULTS = "a handler returns a list with a result for each item"
UNCLEAR = "it is unclear whether"
LIST, ONE = "list [1]", "int 1"
LISTS = "lists of up to 10"
AT_ONCE = "a call, up to 100 calls at once"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Some code, and what becomes of it."""

    code: str  # its name in `ways_in_code`
    batched: str  # what it says where it is batched, or why it is refused there
    served: str  # the same where it is served
    takes: str = ""  # what `shoal check` says
    by_handle: str = ""  # what it says to a call from Python, if that is something else
    item: tuple[Any, ...] = (1,)  # the arguments of the call
    body: Any = 1  # of the request
    streams: bool = False


FLAGGED: dict[str, Any] = {"item": (1, True), "body": {"x": 1, "xs": 1, "flag": True}}
TABLE = [
    Row(code="unannotated", batched=LIST, served=ONE, takes="one item at a time"),
    Row(code="marked", batched=LIST, served=LIST, takes=f"{LISTS} items"),
    Row(code="of_lists", batched=LIST, served=LIST, takes=f"{LISTS} int"),
    Row(
        code="of_one_list",
        batched=NO_RESULTS,
        served="one list [1]",
        takes="one list[int] at a time",
        item=([1],),
        body=[1],
    ),
    Row(code="of_one", batched=NO_LIST, served=ONE, takes="one int at a time"),
    Row(
        code="of_array",
        batched=NO_RESULTS,
        served="ndarray 1",
        takes="one numpy.ndarray at a time",
    ),
    Row(code="of_sequence", batched=LIST, served=LIST, takes=f"{LISTS} int"),
    Row(code="of_iterable", batched=LIST, served=LIST, takes=f"{LISTS} int"),
    Row(code="of_collection", batched=LIST, served=LIST, takes=f"{LISTS} int"),
    Row(
        code="of_maybe_a_list",
        batched=NO_RESULTS,
        served="NoneType None",
        takes="one list[int] | None at a time",
        item=(None,),
        body=None,
    ),
    Row(code="OfLists", batched=LIST, served=LIST, takes=f"{LISTS} int"),
    Row(code="BatchedMethod", batched=NO_LIST, served=LIST, takes=f"one int {AT_ONCE}"),
    Row(code="BatchedCall", batched=LIST, served=LIST, takes=f"one int {AT_ONCE}"),
    Row(
        code="of_request",
        batched=NO_LIST,
        served="WholeRequest",
        by_handle="int",
        takes="one starlette.requests.Request at a time",
    ),
    Row(code="steps_of_lists", batched=LIST, served=LIST, takes=f"{LISTS} int", streams=True),
    Row(code="steps_of_one", batched=NO_LIST, served=ONE, takes="one int at a time", streams=True),
    Row(
        code="of_two_lists",
        batched=f"{LIST}, list [True]",
        served=f"{LIST}, list [True]",
        takes=f"{LISTS} (xs: int, flags: bool)",
        item=(1, True),
        body={"xs": 1, "flags": True},
    ),
    Row(code="with_a_flag", batched=NO_LIST, served=UNCLEAR, **FLAGGED),
    Row(
        code="of_one_with_a_flag",
        batched=NO_LIST,
        served=f"{ONE}, bool True",
        takes="one (x: int, flag: bool = False) at a time",
        item=(1, True),
        body={"x": 1, "flag": True},
    ),
    Row(
        code="flag_filled_in",
        batched=f"{LIST}, bool True",
        served=f"{LIST}, bool True",
        takes=f"{LISTS} int",
    ),
    Row(code="of_any_number", batched=NO_NAMES, served=NO_NAMES),
    Row(
        code="of_nothing",
        batched=NO_RESULTS,
        served="nothing",
        takes="one () at a time",
        item=(),
        body={},
    ),
]
each_row = pytest.mark.parametrize("row", TABLE, ids=[row.code for row in TABLE])
REFUSALS = (NO_LIST, NO_NAMES, NO_RESULTS, UNCLEAR)


def test_each_code_is_in_the_table() -> None:
    own = {
        name
        for name, one in vars(code).items()
        if getattr(one, "__module__", "") == code.__name__ and name != "told"
    }
    assert {row.code for row in TABLE} == own | {"flag_filled_in"}


async def said(call: Any) -> str:
    """What a call says, or a stream of one item, or what is wrong."""
    try:
        if hasattr(call, "__aenter__"):
            async with call as stream:
                [item] = [item async for item in stream]
                return str(item)
        return str(await call)
    except shoal.errors.ShoalError as error:
        return str(error)


async def asked(app: shoal.App, row: Row) -> str:
    answer = await ask(app, "/code", row.body)
    assert answer.status == 200, answer.body
    if row.streams:
        first, *_ = answer.body.decode().split("\n\n")
        return str(json.loads(first.removeprefix("data: ")))
    return str(answer.json())


@each_row
async def test_what_is_batched_gets_lists(row: Row) -> None:
    given = getattr(code, row.code)
    handler = given() if inspect.isclass(given) else given
    ways: list[Any] = [shoal.batch, shoal.Batcher]
    if isinstance(given, type) and isinstance(vars(given)["__call__"], shoal.BatchedFunction):
        ways = [lambda handler: handler.__call__]
    for way in ways:
        if row.batched in REFUSALS:
            with pytest.raises(TypeError, match=row.batched):
                way(handler)
            continue
        face = way(handler)
        opened = face if isinstance(face, shoal.Batcher) else shoal.open_batchers(face)
        async with opened as call:
            assert row.batched in await said((call or face)(*row.item))


@each_row
async def test_what_an_application_serves_gets_what_the_rule_says(row: Row) -> None:
    given = getattr(code, row.code)
    by_endpoint, by_backend = shoal.App(), shoal.App()
    by_backend.backend("code", given)
    by_backend.route("code", backend="code", path="/code")
    if row.served in REFUSALS:
        with pytest.raises(TypeError, match=row.served):
            by_endpoint.endpoint("/code")(given)
        with pytest.raises(TypeError, match=row.served):
            async with by_backend.lifespan():
                pass
        return
    by_endpoint.endpoint("/code")(given)
    for app in (by_endpoint, by_backend):
        async with app.lifespan():
            assert await asked(app, row) == row.served


@each_row
async def test_what_a_client_creates_gets_the_same(row: Row) -> None:
    async with shoal.start() as client:
        for tag, given in (("a", getattr(code, row.code)), ("b", f"ways_in_code:{row.code}")):
            if row.served in REFUSALS:
                with pytest.raises(shoal.errors.ReplicaNotStarted, match=row.served):
                    await client.create_backend(tag, given)
                continue
            handle = await deployed(client, tag, given)
            call = handle.stream(*row.item) if row.streams else handle.call(*row.item)
            assert await said(call) == (row.by_handle or row.served)


@each_row
async def test_what_a_file_declares_gets_the_same_and_is_told_by_check(row, tmp_path, capsys):
    file = tmp_path / "app.toml"
    file.write_text(
        f'[backends.code]\ncode = "ways_in_code:{row.code}"\n'
        '[endpoints.code]\nroute = "/code"\nbackend = "code"'
    )
    exit_code = main(["check", str(file), "--json"])
    told = capsys.readouterr()
    if row.served in REFUSALS:
        assert (exit_code, told.out) == (2, "")
        assert row.served in told.err
        return
    assert json.loads(told.out)["backends"]["code"]["takes"] == row.takes
    app = shoal.App.of_file(read_app_file(file))
    async with app.lifespan():
        assert await asked(app, row) == row.served
