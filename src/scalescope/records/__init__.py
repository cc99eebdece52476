"""Frozen types that cross rooms and reach disk, and how they are saved and loaded."""
