from controlled import ranks
from watched import forked, plain, watch

__all__ = ["forked", "plain", "ranks", "watch"]
