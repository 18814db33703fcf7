"""What code of the user's raises: a copy for each caller, and no end of its neighbours."""
