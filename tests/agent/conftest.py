from watched import forked, watch

__all__ = ["forked", "watch"]
