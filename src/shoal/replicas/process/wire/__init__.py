"""What a worker and its parent say to each other, and in which form."""
