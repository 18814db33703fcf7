"""Code that commands share: arguments, output, and the loading of applications."""
