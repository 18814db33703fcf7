"""The rules that form batches: which requests are in the next batch, and when it is due."""
