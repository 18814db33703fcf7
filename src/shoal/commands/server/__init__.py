"""The server process, and how commands find and reach it.

`process` runs a server, with `options` and `stderr`. `client` names the files of named servers, and
sends requests to a running server.
"""
