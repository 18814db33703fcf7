"""The GPUs of this machine: which there are, and how busy they are."""
