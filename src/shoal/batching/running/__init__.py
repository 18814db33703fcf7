"""The handlers' side: the tasks that take batches and run the handler on them."""
