"""Endpoints over WebSocket: the sub-protocol ``shoal.v1``, many requests on one connection."""
