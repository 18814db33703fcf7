"""HTTP/1.1: requests from bytes, the application's calls, and answers as bytes."""
