"""The process of a server, and how commands find and reach it."""
