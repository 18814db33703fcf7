"""The queue of a batcher: admission, removal, and when a batch is formed."""
