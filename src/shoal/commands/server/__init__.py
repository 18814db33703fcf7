"""The server process, and how commands find and reach it."""
