"""Rules that form batches: which requests make the next one, and when."""
