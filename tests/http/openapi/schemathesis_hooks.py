"""How schemathesis writes and reads MessagePack: it imports this module at its start."""

import ormsgpack
import schemathesis

_MALFORMED = b"\xc1"  # a byte that means nothing


@schemathesis.serializer("application/msgpack")
def serialize(context, value):
    try:
        return ormsgpack.packb(value)
    except TypeError:  # such as a number of more than 64 bits
        return _MALFORMED


@schemathesis.deserializer("application/msgpack")
def deserialize(context, response):
    return ormsgpack.unpackb(response.content)
