"""The version of the package, which its build takes from the tag of its source."""

from importlib.metadata import version
from typing import Final

__version__: Final = version("shoal")
