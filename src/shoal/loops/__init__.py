"""Event loops: detecting the running one, and waiting in it."""
