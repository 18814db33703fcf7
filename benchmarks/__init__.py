"""What the promises about speed and memory are measured with; see README.md."""
