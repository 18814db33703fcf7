"""Requests: from ASGI messages to a call of an endpoint, and from its result to an answer."""
