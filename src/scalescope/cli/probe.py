"""`scalescope probe`: what do links and cores give?"""

import shlex
from typing import Annotated

import typer

from scalescope.cli.options import Device, Env, Folder, Hosts, OutputOptions, Ssh, Timeout, grouped
from scalescope.cli.output import Ending, from_here, interruptible


@grouped
def probe(
    shown: OutputOptions,
    hosts: Hosts = "",
    backends: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="LIST",
            help="gloo, nccl, horovod-gloo, horovod-mpi, separated by commas (default: the one that DDP uses here).",
        ),
    ] = "",
    slots: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Ranks per host (default: its GPUs, or its cores).")
    ] = None,
    threads_per_rank: Annotated[int, typer.Option(min=1, metavar="N", help="Threads per rank.")] = 1,
    seconds: Annotated[str, typer.Option(metavar="TIME", help="Time per group of ranks.")] = "8s",
    device: Device = "auto",
    env: Env = None,
    ssh: Ssh = "ssh",
    timeout_s: Timeout = "10m",
    folder: Folder = None,
) -> None:
    """What do links and cores give? Times collectives among ranks, alone and during compute; writes cluster.toml."""
    from scalescope.api import CLUSTER_FILE, run_probe
    from scalescope.api.requests import probe_request
    from scalescope.charts import write_charts
    from scalescope.report.progress import EstimateProgress
    from scalescope.show import document_of, terminal

    ending = Ending(shown, folder)
    request = probe_request(
        hosts=hosts,
        backends=backends,
        slots=slots,
        threads_per_rank=threads_per_rank,
        seconds=seconds,
        device=device,
        env=env,
        ssh=ssh,
        timeout_s=timeout_s,
        folder=folder,
    )
    with (
        interruptible(lambda _: "; type the same command to start over"),
        EstimateProgress(ending.console, **ending.progress) as progress,
    ):
        place, cluster = run_probe(request, progress)
    file = from_here(place / CLUSTER_FILE)
    options = " --engine horovod" if request.backends[0].startswith("horovod") else ""
    options += " --device cpu" if device == "cpu" else ""  # otherwise a GPU that is here would be profiled
    document = document_of(cluster)
    ending.tell(
        terminal.show,
        document,
        answer=document.answer,
        follow=f"scalescope estimate resnet18 --cluster {shlex.quote(str(file))}{options}",
        document=document.json,
        write=lambda: [
            *ending.pictures(lambda formats: write_charts(document, place, formats), place),
            f"Cluster: {file}",
        ],
    )
