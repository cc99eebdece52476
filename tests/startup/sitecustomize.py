"""Makes tests cheaper, in all Pythons that they start.

Torch is half a million objects, which the garbage collector looks through again and again: while they are imported, and
when Python ends. That is half of the CPU time of a rank that trains for a few steps.

Tests run next to each other, and what is disturbed by other programs is measured again, up to three times as long. So
ranks see a machine that does nothing else; tests/jobs/test_load.py has made-up machines that do.
"""

import atexit
import gc
import sys

gc.set_threshold(1_000_000, 50, 100)
atexit.register(gc.freeze)


class NoOtherPrograms:
    """Finds the module that counts the load of others, and lets it count none."""

    MODULE = "scalescope.jobs.load"

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != cls.MODULE or "pytest" in sys.modules:  # not in the tests themselves
            return None
        import importlib.util

        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_quietly(module):
            execute(module)
            module._busy_s = lambda cores: 0.0

        spec.loader.exec_module = execute_quietly
        return spec


sys.meta_path.insert(0, NoOtherPrograms)
