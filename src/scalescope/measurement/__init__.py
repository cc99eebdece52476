"""Verb measure: rounds of launches, their curves, and tables and logs that people already have."""
