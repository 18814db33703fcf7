"""Queues of requests from which any can leave."""
