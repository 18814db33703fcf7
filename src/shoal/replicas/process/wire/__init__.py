"""The protocol between a worker process and its parent."""
