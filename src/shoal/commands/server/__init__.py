"""The server process, and how commands find and reach it.

`process` runs a server, with `options`, `signals` and `stderr`. `locations` names the files of
named servers, `client` sends requests to a running server, and `screen` shows it.
"""
