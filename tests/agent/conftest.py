from watched import watch

__all__ = ["watch"]
