"""Front ends: processes that speak HTTP for a server, and forward the requests to its process.

Read `wire` first: the channel and its messages. In a front end, `front_end` is the application that
decodes items and forwards requests. In the server's process, `listener` keeps the front ends
running, and `remote_call` is one request that it has forwarded.
"""
