"""Shoal's own protocol: items from JSON and other bodies, and results as JSON.

`endpoint` is the route of an endpoint, and reads items and writes results: read it first.
`payload` chooses how a body becomes an item, by the annotations of the code, and `queries` does it
for a request without a body. `validation` checks JSON against a type, and `scan` bounds its cost.
`arrays` and `msgpack` are other forms of bodies. `stream_forms` has the messages of streams.
"""
