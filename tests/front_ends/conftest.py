"""The fixtures of all tests over HTTP."""

from http_fixtures import *  # noqa: F403
