"""Requests: turns ASGI messages into a call of an endpoint, and its result into an answer."""
