"""A served application keeps to its own document: what schemathesis sends finds nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from described_server import described_server

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

HERE = Path(__file__).parent
# Left out: that what violates a schema is refused, since JSON is converted as pydantic does it, and
# that what fits is accepted, since a schema can't say that nested lists are an array.
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
)
# What it checks formats with takes seconds to import, for formats that no schema here has.
PROGRAM = """
import runpy, sys
sys.modules["rfc3987_syntax"] = None
runpy.run_module("schemathesis.cli", run_name="__main__", alter_sys=True)
"""
# A shorter limit is answered with 504 as it should be, which a check takes for a server's error.
CONFIG = '[parameters]\n"header.X-Request-Timeout" = "30"\n'
# Described as the other methods of these paths are, and as GET is in other paths.
ALIKE = "^(get_(move|kind|raw|array|anything|nothing|times)|put_note)"


@pytest.fixture(scope="module")
def url(request):
    """The address of the application, which a process of its own serves."""
    with described_server("app", "--event-loop", request.param) as address:
        yield address


def run_schemathesis(url, tmp_path, examples, phases, *options):
    """Sends cases, and returns how many there were."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    command = [
        *(sys.executable, "-c", PROGRAM, "--config-file", str(config)),
        *("run", f"{url}/-/openapi.json"),
        *("--checks", ",".join(CHECKS), "--phases", phases, "--max-examples", str(examples)),
        *("--generation-deterministic", "--no-color"),
        "--continue-on-failure",
        *options,
    ]
    paths = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return int(re.search(r"([\d,]+) generated", done.stdout)[1].replace(",", ""))


@pytest.mark.parametrize("url", ["trio"], indirect=True)
def test_a_few_hundred_cases_find_nothing_undocumented(url, tmp_path):
    alike = ("--exclude-operation-id-regex", ALIKE)
    assert run_schemathesis(url, tmp_path, 1, "coverage", *alike) > 300


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["trio", "asyncio"], indirect=True)
def test_two_thousand_cases_find_nothing_undocumented(url, tmp_path):
    assert run_schemathesis(url, tmp_path, 60, "examples,coverage,fuzzing,stateful") >= 2000
