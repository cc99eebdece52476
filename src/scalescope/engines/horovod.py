"""Horovod: its knobs and the variables that carry them to its ranks."""

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from scalescope.engines.base import MIB, Engine, Exchange, Starter, one_by_one
from scalescope.errors import UsageError
from scalescope.records.job import Knob, KnobValue
from scalescope.records.profile import ModelProfile

# What Horovod does when nothing is said, from 0.21 on.
DEFAULT_FUSION_MB, DEFAULT_CYCLE_MS, DEFAULT_CACHE = 128, 1, 1024


class Horovod(Engine):
    """Tensors negotiated, fused and all-reduced by a thread next to the training."""

    name = "horovod"
    title = "Horovod"
    package = "horovod"
    backend_prefix = "horovod-"
    autotunes = True
    live_module = "scalescope.engines.horovod_live"
    operations = ("allreduce", "allgather", "broadcast")
    fewer_exchanges = "hvd.DistributedOptimizer(..., backward_passes_per_step=2)"
    live_check = "scalescope.engines.horovod_switch_live"
    polls = True
    tracer = "timeline"
    tracing_cost = "Horovod's timeline slows small steps on CPUs by 14 to 30 %"
    colour = "#e69f00"
    stand_ins: ClassVar[Mapping[str, str]] = {"horovod-gloo": "gloo"}
    section = "params"  # As horovodrun's config files have it
    beside_section = ("controller",)
    interfaces: ClassVar[Mapping[str, str]] = {
        "gloo": "HOROVOD_GLOO_IFACE={name}",
        "mpi": "mpirun --mca btl_tcp_if_include {name}",
        "nccl": "NCCL_SOCKET_IFNAME={name}",
    }
    lost_peer = r"HorovodInternalError|has been shut down"
    model_error = 0.09
    knobs: tuple[Knob, ...] = (
        Knob(
            name="fusion_threshold_mb",
            type="float",
            default=DEFAULT_FUSION_MB,
            tried=(0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
            low=0,
            high=4096,
            unit="MiB",
            variable="HOROVOD_FUSION_THRESHOLD",
            changes="live",
            meaning="tensors that are ready together are sent together up to this size (0: never)",
        ),
        Knob(
            name="cycle_time_ms",
            type="float",
            default=DEFAULT_CYCLE_MS,
            tried=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0),
            low=0.01,
            high=1000,
            unit="ms",
            variable="HOROVOD_CYCLE_TIME",
            changes="live",
            meaning="how often the ranks agree on what is ready",
        ),
        Knob(
            name="cache_capacity",
            type="int",
            default=DEFAULT_CACHE,
            tried=(0, DEFAULT_CACHE),
            low=0,
            high=1_000_000,
            variable="HOROVOD_CACHE_CAPACITY",
            changes="live",
            meaning="how many agreements are remembered (0: none)",
        ),
        Knob(
            name="hierarchical_allreduce",
            type="bool",
            default=False,
            tried=(False, True),
            variable="HOROVOD_HIERARCHICAL_ALLREDUCE",
            changes="live",
            meaning="reduce inside each host first (NCCL builds only)",
        ),
        Knob(
            name="torus_allreduce",
            type="bool",
            default=False,
            tried=(False, True),
            variable="HOROVOD_TORUS_ALLREDUCE",
            changes="live",
            modelled=False,
            meaning="reduce in rows of hosts, then in columns (NCCL builds only)",
        ),
        Knob(
            name="hierarchical_allgather",
            type="bool",
            default=False,
            variable="HOROVOD_HIERARCHICAL_ALLGATHER",
            modelled=False,
            meaning="gather inside each host first (MPI builds only)",
        ),
        Knob(
            name="controller",
            type="choice",
            default="mpi",
            choices=("mpi", "gloo"),
            variable="HOROVOD_CONTROLLER",
            meaning="what the ranks agree through, and on CPUs what moves the bytes",
        ),
    )

    def how_to_use(self, values: Mapping[str, KnobValue], path: str) -> list[str]:
        """A settings file is a config file of horovodrun."""
        knobs = {knob.name for knob in self.knobs} & set(values)
        return [f"With horovodrun: horovodrun --config-file {shlex.quote(path)} ..."] if knobs else []

    def built_with(self, python: str, what: Literal["mpi", "nccl"]) -> bool:
        """Ask the Horovod of that interpreter; MPI counts where an mpirun is there."""
        if what == "mpi" and not shutil.which("mpirun"):
            return False
        code = f"import sys, horovod.torch as hvd; sys.exit(not hvd.{what}_built())"
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0

    def environment(self, values: Mapping[str, KnobValue], *, named_hosts: bool) -> dict[str, str]:
        """The knobs as Horovod reads them when it starts."""
        chosen: dict[str, KnobValue] = {"controller": "mpi", **values}
        if "fusion_threshold_mb" in chosen:  # in MiB here, in bytes there
            chosen["fusion_threshold_mb"] = int(float(chosen["fusion_threshold_mb"]) * MIB)
        moved_by = {"HOROVOD_CPU_OPERATIONS": str(chosen["controller"])}
        return moved_by | super().environment(chosen, named_hosts=named_hosts)

    def fitted(
        self, values: Mapping[str, KnobValue], launcher: Starter | None, has_mpi: Callable[[], bool]
    ) -> dict[str, KnobValue]:
        """The controller: the launcher's usual one; MPI where no launcher is chosen and MPI is there."""
        named = values.get("controller")
        if launcher is None:
            return {**values, "controller": named or ("mpi" if has_mpi() else "gloo")}
        if launcher.controllers is None:
            return dict(values)
        if not launcher.controllers:
            raise UsageError(f"{launcher.name} cannot start Horovod's ranks: use --launcher {launcher.instead}")
        if named and named not in launcher.controllers:
            title = str(named).title()
            raise UsageError(
                f"{launcher.name} cannot start Horovod's {title} controller: use --launcher {launcher.instead}"
            )
        return {**values, "controller": named or launcher.controllers[0]}

    def launcher(self, values: Mapping[str, KnobValue]) -> str:
        """mpirun for the MPI controller, horovodrun for Gloo."""
        return "mpirun" if self.over_mpi(values) else "horovodrun"

    def over_mpi(self, values: Mapping[str, KnobValue]) -> bool:
        """True unless Gloo's controller is asked for."""
        return values.get("controller", "mpi") == "mpi"

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Gradients leave at the next cycle, together with whatever else is ready by then."""
        chosen = {**{knob.name: knob.default for knob in self.knobs}, **values}
        moved_by = chosen["controller"] if profile.device == "cpu" else "nccl"
        return Exchange(
            backend=f"{self.backend_prefix}{moved_by}",
            messages=one_by_one(profile.gradients),
            fuse_bytes=int(float(str(chosen["fusion_threshold_mb"])) * MIB),
            cycle_s=float(str(chosen["cycle_time_ms"])) / 1000,
            negotiated=True,
            by_hosts=moved_by == "nccl" and bool(chosen["hierarchical_allreduce"]),
            agreements_kept=int(str(chosen["cache_capacity"])) >= len(profile.gradients),
        )

    def values_for(self, moved_by: str) -> dict[str, KnobValue]:
        """The controller, which also moves the bytes on CPUs; NCCL builds agree through MPI."""
        return {"controller": "mpi" if moved_by == "nccl" else moved_by}


HOROVOD = Horovod()
