"""The search for better knobs: the space, what is expected of it, the search and its confirmation."""
