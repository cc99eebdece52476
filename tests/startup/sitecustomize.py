"""Makes tests cheaper: torch is half a million objects, which the garbage collector looks through again and again.

While they are imported, and when Python ends: that is half of the CPU time of a rank that trains for a few steps.
"""

import atexit
import gc

gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)
