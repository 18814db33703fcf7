"""An application as a file: ``app.toml``, checked without importing any code."""
