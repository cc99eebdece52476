"""What must not change between the launches that are compared with each other."""

import msgspec


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the software of a measurement."""

    host: str
    cpu: str
    """Its model, as the kernel names it; empty where it does not."""
    cores: int
    """That the process may use."""
    gpus: tuple[str, ...]
    """Their names."""
    python: str
    torch: str
    """Empty: none."""
