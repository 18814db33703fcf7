"""Queues of requests from which any request can leave."""
