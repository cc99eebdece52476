"""Several answers together: what result folders hold, and two results side by side."""
