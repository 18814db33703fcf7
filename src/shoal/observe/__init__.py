"""What an operator sees of a running application; nothing in the engine knows of it."""
