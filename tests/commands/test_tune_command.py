"""``shoal tune``: what it measures, what it prints, and mistakes."""

import sys

import pytest

pytestmark = pytest.mark.slow

COMMAND = "tune"

HANDLERS = """
import anyio

import shoal

weights = None


async def echo(texts: list[str]) -> list[str]:
    print("the handler runs")
    await anyio.sleep(0.001)
    return texts


@shoal.batch(max_batch_size=4, max_concurrent_batches=2)
async def decorated(texts: list[str]) -> list[str]:
    await anyio.sleep(0.001)
    return texts


@shoal.batch(batch_size_fn=len)
async def costly(texts: list[str]) -> list[str]:
    return texts


async def fails(texts: list[str]) -> list[str]:
    raise LookupError("no weights")


class Echo:
    def __init__(self, suffix: str, *, times: int = 1) -> None:
        if times == 13:
            raise OSError("no weights in the file")
        self.suffix = suffix * times

    async def __call__(self, texts: list[str]) -> list[str]:
        await anyio.sleep(0.001)
        return [text + self.suffix for text in texts]


class Nothing:
    pass


async def sums(a: list[int], b: list[int]) -> list[int]:
    await anyio.sleep(0.001)
    return [sum(pair) for pair in zip(a, b)]


def a_text() -> str:
    return "herring"


def no_text() -> str:
    raise LookupError("no texts")
"""

FEW = ["--runs", "5", "--requests", "100"]
QUICK = ["--rate", "10", "--p99", "100", "--max-batch-size", "2", *FEW]


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    (tmp_path / "tuned.py").write_text(HANDLERS)
    (tmp_path / "broken.py").write_text("def load():\n    raise LookupError('bad day')\n\nload()\n")
    (tmp_path / "items.json").write_text('["eel", "sole"]')
    (tmp_path / "empty.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("tuned", "broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("source", "loop"),
    [
        (["--item", '"eel"'], "trio"),
        (["--items", "items.json"], "asyncio"),
        (["--item-from", "tuned:a_text"], "trio"),
    ],
)
def test_it_names_the_options_that_meet_the_target(source, loop, told):
    text = told("tuned:echo", *source, *QUICK, "--event-loop", loop)
    assert text.startswith("size  runs  ")
    assert (
        "10 requests a second, 99% of them within 100 s: 5 of 5 pairs of options meet this target."
        in text
    )
    assert "\nBest: max_batch_size=" in text


def test_what_the_handler_prints_is_no_result(told):
    data = told("tuned:echo", "--item", '"eel"', *QUICK, "--json")
    assert list(data["run_time"]["runs_s"]) == ["1", "2"]
    assert "the handler runs" in told.err


def test_a_decorated_handler_keeps_its_options(told):
    data = told("tuned:decorated", "--item", '"eel"', "--rate", "10", "--p99", "1", *FEW, "--json")
    assert list(data["run_time"]["runs_s"]) == ["1", "2", "4"]


def test_a_class_is_measured_by_an_instance(told):
    arguments = ["--arg", "s", "--kwarg", "times=2", "--item", '"eel"', *QUICK, "--json"]
    data = told("tuned:Echo", *arguments)
    assert list(data["run_time"]["runs_s"]) == ["1", "2"]


@pytest.mark.parametrize("item", ["[1, 2]", '{"b": 2, "a": 1}'])
def test_an_item_of_several_parameters_is_an_array_or_an_object(item, told, directory):
    told("tuned:sums", "--item", item, *QUICK)
    (directory / "of_file.json").write_text(f"[{item}, {item}]")
    told("tuned:sums", "--items", "of_file.json", *QUICK)


def test_options_can_be_named(told):
    told("tuned:echo", "--item", '"eel"', *QUICK, "--option", "allowed_batch_sizes=3", code=2)
    assert "shoal: allowed_batch_sizes" in told.err


def test_a_target_that_is_missed_is_no_success(told):
    text = told("tuned:echo", "--item", '"eel"', *QUICK, "--p99", "0.0001", code=1)
    assert "none of 5 pairs of options meets this target" in text


def test_a_plot_is_saved(told, directory):
    told("tuned:echo", "--item", '"eel"', *QUICK, "--plot", "why.png")
    assert (directory / "why.png").read_bytes().startswith(b"\x89PNG")
    assert told.err.endswith("Saved why.png\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["tuned", "--item", '"eel"'], "'tuned' is not an import path; write it like 'my_module"),
        (["absent:echo", "--item", '"eel"'], "no module 'absent' in "),
        (["tuned:absent", "--item", '"eel"'], "tuned has no attribute 'absent'"),
        (["tuned:weights", "--item", '"eel"'], "a handler must be a function of a list, not None"),
        (["tuned:echo", "--item", "eel"], "--item is not JSON: "),
        (["tuned:echo", "--items", "absent.json"], "can't read absent.json: No such file"),
        (["tuned:echo", "--items", "empty.json"], "must contain a JSON array of at least one item"),
        (["tuned:echo", "--items", "tuned.py"], "tuned.py is not JSON"),
        (["tuned:echo", "--item-from", "tuned:weights"], "tuned:weights is not a function"),
        (["tuned:echo", "--item", '"eel"', "--option", "x"], "an option is written KEY=VALUE"),
        (["tuned:costly", "--item", '"eel"'], "is decorated with a batch_size_fn"),
        (["tuned:Nothing", "--item", '"eel"'], "the class Nothing has no __call__"),
        (
            ["tuned:echo", "--item", '"eel"', "--arg", "1"],
            "echo is not a class, so it takes no --arg or --kwarg",
        ),
        (["tuned:Echo", "--item", '"eel"', "--kwarg", "x"], "an option is written KEY=VALUE"),
        (
            ["tuned:Echo", "--item", '"eel"'],
            (
                "Echo can't be instantiated: missing a required argument: 'suffix'; give its "
                "arguments with --arg and --kwarg"
            ),
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments, line, mistake):
    assert line in mistake(COMMAND, *arguments, *QUICK, code=2)


@pytest.mark.parametrize(
    ("arguments", "error", "last_line"),
    [
        (["broken:echo", "--item", '"eel"'], "bad day", "importing broken:echo failed, see above"),
        (["tuned:fails", "--item", '"eel"'], "no weights", "a batch of 1 failed, see above"),
        (
            ["tuned:Echo", "--item", '"eel"', "--arg=s", "--kwarg=times=13"],
            "no weights in the file",
            "Echo could not be instantiated, see above",
        ),
        (
            ["tuned:echo", "--item-from", "tuned:no_text"],
            "no texts",
            "tuned:no_text() failed, see above",
        ),
    ],
)
def test_code_that_fails_shows_its_traceback(arguments, error, last_line, told):
    told(*arguments, *QUICK, code=1)
    assert f"Error: {error}" in told.err
    assert told.err.splitlines()[-1] == f"shoal: {last_line}"


@pytest.mark.parametrize("without", ["--rate", "--p99"])
def test_a_rate_and_a_target_are_needed(without, told):
    arguments = QUICK.copy()
    del arguments[arguments.index(without) : arguments.index(without) + 2]
    told("tuned:echo", "--item", '"eel"', *arguments, code=2)
    assert told.err.endswith("see shoal tune --help\n")
