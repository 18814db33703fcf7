"""Endpoints over WebSocket: the sub-protocol ``shoal.v1``, many requests on one connection.

Read in this order: `sockets` finds the endpoint for a handshake, `messages` reads the client's
messages, `connection` answers them.
"""
