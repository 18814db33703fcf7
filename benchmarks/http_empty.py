"""An application without endpoints, by which http.py measures how fast Shoal starts."""

from __future__ import annotations

from typing import Final

import shoal

app: Final = shoal.App()
