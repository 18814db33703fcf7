"""Calls over a WebSocket by the sub-protocol ``shoal.v1``: many at once on one connection."""
