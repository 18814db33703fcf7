"""The handlers' side: the worker slots, tasks that take batches and run the handler on them."""
