"""Where user code runs: in this event loop, in threads, in processes, on other machines."""
