"""One HTTP request, in any protocol: its exchange, its route, its call, and its response.

Read `dispatch` first, which calls the route of a request, then `exchange` and `call`. All
requests of an application have the same `shared_parts`. A protocol is a folder beside this one,
with a codec and routes (`protocol`). `streaming` sends streams, and `problem` turns errors into
responses.
"""
