"""The check of a policy that forms batches."""
