"""`shoal.batch`: batched functions, and the blocks in which they are open."""
