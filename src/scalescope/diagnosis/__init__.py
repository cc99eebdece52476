"""From traces to an explanation, and from an explanation to findings."""
