"""The callers' side: from a call to a request in the queue, and to its result or stream."""
