"""Code of the user that configures logging does not switch Shoal's log off."""

from __future__ import annotations

import logging
import logging.config
import sys

import pytest

from shoal.replicas.code.definition import Definition, imported
from shoal.replicas.code.instance import Instance

NAMES = ("shoal", "shoal.server", "shoal.serving", "shoal.access")
UVICORN = """\
{
    "version": 1,
    "handlers": {"default": {"class": "logging.NullHandler"}},
    "loggers": {"uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False}},
}"""
CONFIGURING = {
    "dictConfig": "logging.config.dictConfig({'version': 1})",
    "like uvicorn": f"logging.config.dictConfig({UVICORN})",
    "fileConfig": "logging.config.fileConfig({directory!r} + '/logging.ini')",
}
INI = """\
[loggers]
keys = root
[handlers]
keys =
[formatters]
keys =
[logger_root]
handlers =
"""


@pytest.fixture
def log():
    """The loggers, which are as they were when the test has ended."""
    loggers = [logging.getLogger(name) for name in NAMES]
    everyone = [
        one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)
    ]
    before = [(one, one.disabled, one.level, one.propagate, [*one.handlers]) for one in everyone]
    root = logging.root.level, [*logging.root.handlers]
    yield loggers
    for one, disabled, level, propagate, handlers in before:
        one.disabled, one.level, one.propagate, one.handlers = disabled, level, propagate, handlers
    logging.root.setLevel(root[0])
    logging.root.handlers[:] = root[1]


@pytest.fixture(params=CONFIGURING)
def configuring(request, tmp_path, monkeypatch):
    (tmp_path / "logging.ini").write_text(INI)
    statement = CONFIGURING[request.param].replace("{directory!r}", repr(str(tmp_path)))
    (tmp_path / "configures.py").write_text(
        f"import logging.config\n\ndef configure():\n    {statement}\n\n"
        "class Model:\n    def __init__(self):\n        configure()\n\n"
        "    def __call__(self, items: list[int]) -> list[int]:\n        return items\n"
    )
    (tmp_path / "configures_at_import.py").write_text(
        "import configures\n\nconfigures.configure()\nmodel = configures.Model\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("configures", "configures_at_import"):
        sys.modules.pop(name, None)


def test_a_module_that_configures_logging_leaves_shoals_on(configuring, log):
    imported("configures_at_import:model")
    assert not any(logger.disabled for logger in log)


def test_a_constructor_that_configures_logging_leaves_shoals_on(configuring, log):
    Instance(Definition("configures:Model"))
    assert not any(logger.disabled for logger in log)


def test_a_logger_that_was_off_before_stays_off(configuring, log):
    log[0].disabled = True
    imported("configures_at_import:model")
    assert [logger.disabled for logger in log] == [True, False, False, False]
