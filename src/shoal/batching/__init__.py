"""The engine: the tasks that form batches, run handlers and give each caller its own result."""
