"""Pure functions on step times: where warm-up ends, what a steady step takes."""
