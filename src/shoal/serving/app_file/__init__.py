"""Application files (``app.toml``), checked without importing any code."""
