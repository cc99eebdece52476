"""An explanation on the terminal, as one sentence, as JSON and as tables."""
