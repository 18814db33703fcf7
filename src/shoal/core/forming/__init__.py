"""The queue of a batcher: who is admitted, who leaves, and when a batch is formed."""
