"""The fixtures of all tests over HTTP."""

from http_fixtures import *  # noqa: F403
from lent_heads import asking, called  # noqa: F401
