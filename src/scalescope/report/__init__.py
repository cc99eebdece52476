"""Shows records to people: terminal, charts, JSON."""
