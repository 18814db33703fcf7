"""The application of http_servers.py as ``shoal serve`` takes it."""

from __future__ import annotations

from typing import Final

from benchmarks.http_servers import shoal_application, with_statistics

app: Final = with_statistics(shoal_application())
