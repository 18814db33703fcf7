"""What runs in the environment of the compared servers, which has no Shoal: `make bench-peers`."""
