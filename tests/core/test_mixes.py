"""Options that can't be combined are refused; the error names both and says what to do instead.

A package that only an extra installs is asked for early, in one way that names the extra.
"""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from handlers import echo
from shoal import BatchOptions, Cache, LatencyTarget, Limit, Models, QueuePolicy
from shoal.core.extras import is_installed, need, needing
from shoal.core.options import mixes
from shoal.core.options.names import nearest, suggested
from shoal.serving.backend_config import BackendConfig
from shoal.serving.backend_options import NAMES

TARGET = LatencyTarget(p99_s=1)
MODELS = Models(most=2)
WAITS = QueuePolicy(batch_wait_timeout_s=1)
SPLIT: dict[str, Any] = {"split": divmod, "join": sum, "batch_size_fn": len}
ISOLATED: dict[str, Any] = {"priority_levels": 2, "priority_mixing": "isolate"}
EIGHT: dict[str, Any] = {"max_batch_size": 8}
FOUR_OR_EIGHT: dict[str, Any] = {"max_batch_size": 8, "allowed_batch_sizes": (4, 8)}


def pad(items: list[Any], n: int) -> list[Any]:
    return items + items[-1:] * (n - len(items))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**FOUR_OR_EIGHT, "preferred_batch_sizes": (4,)}, "pass the allowed sizes only"),
    ({**FOUR_OR_EIGHT, "adaptive": TARGET}, "rise in steps"),
    ({"adaptive": TARGET, "preferred_batch_sizes": (4,)}, "both choose the size"),
    ({"adaptive": TARGET, "idle_timeout_s": 1}, "both choose how long"),
    ({"adaptive": TARGET, "idle_timeout_s": 0}, "both choose how long"),
    ({"adaptive": TARGET, "queue_policies": {1: WAITS}}, "leave batch_wait_timeout_s out"),
    ({"adaptive": TARGET, "default_queue_policy": WAITS}, "leave batch_wait_timeout_s out"),
    ({"adaptive": TARGET, "batch_wait_timeout_s": 1}, "leave batch_wait_timeout_s out"),
    ({"adaptive": TARGET, "batch_wait_timeout_s": None}, "leave batch_wait_timeout_s out"),
    ({**FOUR_OR_EIGHT, "batch_size_fn": len}, r"pass pad=\(items, n\) -> items"),
    ({"max_batch_cost": 8}, r"pass batch_size_fn=\(item\) -> cost"),
    ({**FOUR_OR_EIGHT, "max_batch_cost": 8, "batch_size_fn": len, "pad": pad}, "sums of costs"),
    (
        {"max_batch_cost": 8, "batch_size_fn": len, "preferred_batch_sizes": (4,)},
        "the largest is max_batch_size",
    ),
    ({"pad": pad}, r"pass allowed_batch_sizes=\(8, 16, 32\)"),
    ({"padding": "down"}, r"pass allowed_batch_sizes=\(8, 16, 32\)"),
    ({"padding": "cost"}, r"pass allowed_batch_sizes=\(8, 16, 32\)"),
    ({"split": divmod, "batch_size_fn": len}, "pass both"),
    ({"join": sum, "batch_size_fn": len}, "pass both"),
    ({"split": divmod, "join": sum}, r"pass batch_size_fn=\(item\) -> cost"),
    ({**SPLIT, "dedupe": True}, "equal calls can't share"),
    ({**SPLIT, "cache": Cache(max_size=1, ttl_s=1)}, "equal calls can't share"),
    ({"priority_mixing": "isolate"}, "there is only one level"),
    ({"overload": "shed_oldest"}, "pass max_queued_requests=1000"),
    ({"overload": "shed_lowest"}, "pass max_queued_requests=1000"),
    ({"overload": "shed_oldest", "max_queued_requests": 0}, "pass max_queued_requests=1000"),
    ({"overload": "shed_lowest", "max_queued_requests": 0}, "pass max_queued_requests=1000"),
    ({"max_queued_requests": 0, "bucket_by": len}, "only some of the requests"),
    ({"max_queued_requests": 0, **ISOLATED}, "only some of the requests"),
    ({"max_queued_requests": 0, "sticky_load_factor": 2}, "only some of the requests"),
    ({"policy": print, "sticky_load_factor": 2}, "the policy alone decides"),
    ({"policy": print, "models": MODELS}, "the policy alone decides"),
    ({"models": MODELS, "sticky_load_factor": 2}, "both choose the replica"),
    ({"max_queued_requests": 0, "models": MODELS}, "only some of the requests"),
    ({"policy": print, "idle_timeout_s": 0}, "the policy alone decides"),
    ({"policy": print, "batch_size_fn": len}, "the policy alone decides"),
    ({"policy": print, "bucket_by": len}, "the policy alone decides"),
    ({**FOUR_OR_EIGHT, "policy": print}, "the policy alone decides"),
    ({"policy": print, "preferred_batch_sizes": (4,)}, "the policy alone decides"),
    ({"policy": print, "queue_policies": {1: QueuePolicy()}}, "the policy alone decides"),
    ({"policy": print, "default_queue_policy": QueuePolicy()}, "the policy alone decides"),
    ({"policy": print, "adaptive": TARGET}, "the policy alone decides"),
    ({"policy": print, "order": "deadline"}, "the policy alone decides"),
    ({"policy": print, **ISOLATED}, "the policy alone decides"),
    ({"limit": Limit(cost_per_min=60), "max_queued_requests": 0}, "waits in the queue"),
    ({"limit": Limit(cost_per_min=60), "isolate_errors": True}, "beyond any limit"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED)
def test_a_mix_is_refused_with_the_reason(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"do not go together: .*{why}"):
        BatchOptions(**options)


def test_the_message_names_both_options_and_their_values() -> None:
    with pytest.raises(ValueError, match=r"^padding='down' and allowed_batch_sizes=None do not go"):
        BatchOptions(padding="down")


LIMIT = Limit(batches_per_s=5)
ACCEPTED: list[dict[str, Any]] = [
    {"adaptive": TARGET, "bucket_by": len, "batch_size_fn": len},
    {"adaptive": TARGET, "default_queue_policy": QueuePolicy(timeout_s=1)},
    {**FOUR_OR_EIGHT, "batch_size_fn": len, "pad": pad, "padding": "cost"},
    {**EIGHT, "preferred_batch_sizes": (4,), "idle_timeout_s": 1, "bucket_by": len},
    {"split": divmod, "join": sum, "batch_size_fn": len, "bucket_by": len},
    {"max_batch_cost": 8, "batch_size_fn": len, "adaptive": TARGET},
    {"overload": "wait"},
    {"limit": LIMIT, "adaptive": TARGET, "bucket_by": len, "max_queued_requests": 1},
    {"limit": LIMIT, "policy": print},
    {"policy": print, "priority_levels": 2, "batch_wait_timeout_s": None},
    {"priority_mixing": "isolate", "priority_levels": 2, "order": "deadline", "bucket_by": len},
]


@pytest.mark.parametrize("options", ACCEPTED)
def test_what_means_something_is_accepted(options: dict[str, Any]) -> None:
    assert BatchOptions(**options)


def test_a_change_to_a_mix_is_refused_and_changes_nothing() -> None:
    before = BatchOptions(max_queued_requests=3, overload="shed_oldest")
    changes: dict[str, Any] = {"max_queued_requests": None}
    with pytest.raises(ValueError, match="an unbounded queue"):
        before.changed(changes)
    assert before.max_queued_requests == 3


FILLS: list[tuple[dict[str, Any], str]] = [
    (FOUR_OR_EIGHT, "no size to be padded to"),
    ({"preferred_batch_sizes": (4,)}, "at any size"),
    ({"bucket_by": len}, "keep the other keys waiting"),
    (SPLIT, "all parts could join the same"),
    ({"adaptive": TARGET}, "run time of a batch that grows"),
    ({"policy": print}, "no policy forms it"),
    ({"sticky_load_factor": 2}, "on whichever replica"),
    ({"models": MODELS}, "one model, which would keep the others"),
    ({"isolate_errors": True}, "answers each request by itself"),
    ({"limit": LIMIT}, "no start of one could be put off"),
    ({"refuse_late": True}, "does not tell how long a request takes"),
    ({"default_queue_policy": WAITS}, "leave it out of the queue policies"),
    ({"priority_levels": 2, "priority_mixing": "isolate"}, "keep the others waiting"),
]
NEVER_CLOSES: list[tuple[dict[str, Any], str]] = [
    ({"batch_wait_timeout_s": 1}, "never closes"),
    ({"idle_timeout_s": 0}, "never closes"),
    ({"handler_timeout_s": 1}, "as long as the batcher is open"),
]


@pytest.mark.parametrize("fill", ["open", "continuous"])
@pytest.mark.parametrize(("options", "why"), FILLS)
def test_an_open_batch_refuses_what_needs_a_closed_one(fill, options, why):
    refusal = mixes.refused_fill(fill, BatchOptions(**options))
    assert refusal is not None
    assert fill in refusal
    assert why in refusal
    assert mixes.refused_fill("closed", BatchOptions(**options)) is None


@pytest.mark.parametrize(("options", "why"), NEVER_CLOSES)
def test_a_batch_that_never_closes_refuses_what_would_close_it(options, why):
    refusal = mixes.refused_fill("continuous", BatchOptions(**options))
    assert refusal is not None
    assert why in refusal
    assert mixes.refused_fill("open", BatchOptions(**options)) is None


def test_every_option_that_a_fill_refuses_is_tried_here() -> None:
    tried = {name for options, _ in FILLS + NEVER_CLOSES for name in options}
    assert tried >= mixes._REFUSED_FOR_OPEN.keys() | mixes._REFUSED_FOR_CONTINUOUS.keys()


@pytest.mark.parametrize("fill", ["open", "continuous"])
def test_an_open_batch_takes_the_other_options(fill: str) -> None:
    options = BatchOptions(batch_size_fn=len, priority_levels=2, order="deadline", overload="wait")
    assert mixes.refused_fill(fill, options) is None


# Suggestions for unknown option names: similar names, other systems' names, or none


@pytest.mark.parametrize("name", ["method", "xyzzy", "tints", "route", "max_latency", "timeout_fn"])
def test_what_is_like_no_other_is_not_guessed(name: str) -> None:
    assert suggested(name, NAMES) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_replica", "num_replicas"),
        ("replicas", "num_replicas"),
        ("wait_timeout", "batch_wait_timeout_s"),
        ("batch_max_size", "max_batch_size"),
        ("max_queue", "max_queued_requests"),
        ("preferred_batch_size", "preferred_batch_sizes"),
        ("memory", "max_memory_bytes"),
        ("batch_wait_timeout", "batch_wait_timeout_s"),
        ("concurrent_batches", "max_concurrent_batches"),
        ("batch_size_func", "batch_size_fn"),
        ("max_bach_size", "max_batch_size"),
        ("Max_Batch_Size", "max_batch_size"),
    ],
)
def test_a_slip_or_a_part_of_a_name_is(name: str, meant: str) -> None:
    assert nearest(name, NAMES) == meant


def test_a_similar_name_is_suggested_wherever_options_are_given() -> None:
    given: dict[str, Any] = {"batch_timeout": 0.1}
    for refused in (
        lambda: shoal.batch(echo, **given),
        lambda: shoal.Batcher(echo, **given),
        lambda: BackendConfig(**given),
        lambda: shoal.App().endpoint("/", **given),
    ):
        with pytest.raises(TypeError, match=r"'batch_timeout' is not .*; did you mean 'batch_wait"):
            refused()


@pytest.mark.parametrize("given", [{"method": "POST"}, {"metods": ["POST"]}])
def test_an_endpoints_own_arguments_are_suggested_too(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"did you mean 'methods'"):
        shoal.App().endpoint("/", **given)


async def test_middleware_is_meant_under_both_names() -> None:
    with pytest.raises(TypeError, match=r"'middleware' is not an option of http; did you mean"):
        async with shoal.start(http={"middleware": []}):
            pass
    for name, says in (("middlewares", "did you mean"), ("xyzzy", "there are allowed_hosts")):
        given: dict[str, Any] = {name: []}
        with pytest.raises(TypeError, match=f"'{name}' is not an option of shoal.App; {says}"):
            shoal.App(**given)


SOURCE = Path(shoal.__file__).parent


def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


def test_a_missing_module_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cachetools", None)
    assert not is_installed("cachetools")
    assert not is_installed("no.such.module")
    wanted = r"^a thing needs cachetools, which is not installed: pip install 'shoal\[cache\]'$"
    with pytest.raises(ModuleNotFoundError, match=wanted):
        need("a thing", "cachetools", "cache")
    with pytest.raises(ModuleNotFoundError, match=wanted), needing("a thing", "cache"):
        import cachetools  # noqa: F401


def test_the_innermost_extra_is_named_and_our_own_mistakes_are_not():
    with (
        pytest.raises(ModuleNotFoundError, match=r"^b needs y, .*\[two\]"),
        needing("a", "one"),
        needing("b", "two"),
    ):
        raise ModuleNotFoundError("x", name="y.z")
    with pytest.raises(ModuleNotFoundError, match=r"^x$"), needing("a", "one"):
        raise ModuleNotFoundError("x", name="shoal.nothing")


def test_a_cache_without_cachetools_is_refused_at_the_decoration(monkeypatch):
    monkeypatch.setitem(sys.modules, "cachetools", None)
    cache = shoal.Cache(max_size=8, ttl_s=1)
    wanted = r"cache= needs cachetools, .*pip install 'shoal\[cache\]'"
    app = shoal.App()
    for declare in (
        shoal.batch(cache=cache),
        lambda code: shoal.Batcher(code, cache=cache),
        app.endpoint("/x", cache=cache),
        lambda code: shoal.Batcher(code).configure(cache=cache),
    ):
        with pytest.raises(ModuleNotFoundError, match=wanted):
            declare(doubled)


def test_an_endpoint_on_ray_without_ray_is_refused_where_it_is_declared(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"placement='ray' needs ray, .*shoal\[ray\]"):
        shoal.App().endpoint("/x", placement="ray")(doubled)


def texts(tree):
    """The text of a module without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value]


def test_no_other_file_names_extras_or_looks_for_packages():
    found = set()
    for path in SOURCE.rglob("*.py"):
        source = path.read_text()
        if "find_spec" not in source and "pip install" not in source:
            continue
        tree = ast.parse(source)
        names = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
        if "find_spec" in names or any("pip install" in str(text) for text in texts(tree)):
            found.add(path.relative_to(SOURCE).as_posix())
    assert found == {"core/extras.py"}
