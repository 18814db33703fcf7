"""Code of the user that configures logging does not switch Shoal's log off."""

import subprocess
import sys

import pytest

UVICORN = """\
{
    "version": 1,
    "handlers": {"default": {"class": "logging.NullHandler"}},
    "loggers": {"uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False}},
}"""
INI = "[loggers]\nkeys=root\n[handlers]\nkeys=\n[formatters]\nkeys=\n[logger_root]\nhandlers=\n"
CODE = """
import logging.config

def configure():
    STATEMENT

class Model:
    def __init__(self):
        configure()

    def __call__(self, items: list[int]) -> list[int]:
        return items
"""
PROGRAM = """
import logging
from shoal.replicas.code.definition import Definition, imported
from shoal.replicas.code.instance import Instance

loggers = [logging.getLogger(name) for name in ("shoal", "shoal.server", "shoal.access")]
loggers[0].disabled = True  # stays as it is
for load in (
    lambda: imported("configures_at_import:Model"),
    lambda: Instance(Definition("configures:Model")),
):
    load()
    print([logger.disabled for logger in loggers])
"""


@pytest.mark.real_time
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("logging.config.dictConfig({'version': 1})", id="dictConfig"),
        pytest.param(f"logging.config.dictConfig({UVICORN})", id="like uvicorn"),
        pytest.param("logging.config.fileConfig('logging.ini')", id="fileConfig"),
    ],
)
def test_code_that_configures_logging_leaves_shoals_log_on(statement, tmp_path):
    (tmp_path / "logging.ini").write_text(INI)
    (tmp_path / "configures.py").write_text(CODE.replace("STATEMENT", statement))
    (tmp_path / "configures_at_import.py").write_text("from configures import *\nconfigure()\n")
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == 2 * "[True, False, False]\n", ran.stderr
