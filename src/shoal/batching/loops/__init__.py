"""Event loops: which one runs, and how a task waits in it."""
