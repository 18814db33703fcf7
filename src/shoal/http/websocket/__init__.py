"""Endpoints over WebSocket: the sub-protocol ``shoal.v1``, many requests on one connection.

`messages` reads the client's messages, `connection` answers them. `shoal.http.app.router` finds the
endpoint for a handshake.
"""
