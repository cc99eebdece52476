"""What people see of a search for better knobs."""
