"""Tables, training logs and autotune logs that people already have."""
