"""The batching engine: forms batches, runs handlers and returns each caller's own result."""
