from controlled import ranks
from watched import forked, watch

__all__ = ["forked", "ranks", "watch"]
