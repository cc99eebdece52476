"""scalescope probe: what do links and cores give?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import Json, Quiet, Timeout
from scalescope.cli.output import from_here, pictures
from scalescope.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from scalescope.records.cluster import Cluster

FILE = "cluster.toml"


def probe(
    hosts: Annotated[str, typer.Option(help="Named hosts with slots: a:2,b:2 (this machine).")] = "",
    backend: Annotated[
        str, typer.Option(help="gloo, nccl, horovod-gloo, horovod-mpi, separated by commas (what DDP uses here).")
    ] = "",
    slots: Annotated[int | None, typer.Option(min=1, help="Ranks of a node (its GPUs or cores).")] = None,
    threads_per_rank: Annotated[int, typer.Option(min=1, help="Of each rank while it is probed.")] = 1,
    seconds: Annotated[str, typer.Option(help="For each group of ranks.")] = "8s",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    env: Annotated[list[str] | None, typer.Option(help="A variable for every rank: NAME=VALUE.")] = None,
    ssh: Annotated[str, typer.Option(help="The program that reaches named hosts.")] = "ssh",
    timeout: Timeout = "10m",
    output: Annotated[Path | None, typer.Option("-o", help="Folder for the results.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What do links and cores give? Times collectives among ranks, alone and beside compute; writes cluster.toml."""
    from json import loads

    from msgspec.json import encode
    from msgspec.structs import replace
    from rich.console import Console

    from scalescope import host
    from scalescope.estimation.cluster import probe_cluster
    from scalescope.jobs.folders import result_folder
    from scalescope.jobs.request import parse_environment, parse_hosts
    from scalescope.records.cluster_file import write_cluster
    from scalescope.records.request import ProbeRequest
    from scalescope.report.machine import sentence, show
    from scalescope.report.progress import EstimateProgress
    from scalescope.units import parse_seconds

    if device not in ("cpu", "cuda", "auto"):
        raise UsageError(f"--device takes cpu, cuda or auto, not '{device}'")
    default = "gloo" if device == "cpu" or not host.gpus() else "nccl"
    request = ProbeRequest(
        backends=tuple(dict.fromkeys(name.strip() for name in (backend or default).split(","))),
        hosts=parse_hosts(hosts),
        slots=slots,
        threads_per_rank=threads_per_rank,
        device=device,
        seconds=parse_seconds(seconds, "--seconds"),
        env=parse_environment(env or []),
        ssh=ssh,
        timeout_s=parse_seconds(timeout, "--timeout"),
    )
    console = Console(stderr=json)
    with result_folder("probe", output) as folder:
        if (folder / FILE).exists():  # people edit it to describe a larger cluster
            raise UsageError(f"{folder} already holds a probe: choose another folder with -o")
        try:
            with EstimateProgress(console, quiet=quiet) as progress:
                cluster = probe_cluster(replace(request, folder=str(folder)), progress)
        except KeyboardInterrupt:
            raise Interrupted("interrupted: nothing is left running; type the same command to begin anew") from None
        write_cluster(cluster, folder / FILE)
        lines = pictures(lambda: _draw(cluster, folder))
    file = from_here(folder / FILE)
    if not quiet:
        show(cluster, console)
        for line in [*lines, f"Cluster: {file}"]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(sentence(cluster), style="bold", markup=False, highlight=False, soft_wrap=True)
    if not quiet:
        console.print(f"Next: scalescope estimate resnet18 --cluster {file}", markup=False, highlight=False)
    if json:
        print(encode(loads(encode(cluster))).decode())


def _draw(cluster: "Cluster", folder: Path) -> list[Path]:
    from scalescope.charts import write_charts

    return write_charts(cluster, folder)
