"""`scalescope tune`: find better knobs while it trains, or by relaunch, and say whether they are worth it."""

from typing import TYPE_CHECKING

import typer

from scalescope.cli import tune_options as given
from scalescope.cli.options import Input, Json, LearningRate, Loss, ModelArg, Optimizer, Quiet
from scalescope.cli.tune_report import tell_tuning
from scalescope.errors import UsageError

if TYPE_CHECKING:
    from scalescope.tuner.settings import SettingsFile


def tune(
    context: typer.Context,
    model: given.Model = "",
    np: given.Np = "",
    batch: given.Batch = None,
    engine: given.EngineName = "",
    offline: given.Offline = False,
    start_from: given.StartFrom = None,
    method: given.Method = None,
    warmup_samples: given.WarmupSamples = None,
    steps_per_sample: given.StepsPerSample = None,
    max_samples: given.MaxSamples = None,
    gp_noise: given.GpNoise = None,
    log_file: given.LogFile = None,
    resume: given.Resume = None,
    autotune_warmup_samples: given.AutotuneWarmupSamples = None,
    autotune_steps_per_sample: given.AutotuneStepsPerSample = None,
    autotune_bayes_opt_max_samples: given.AutotuneMaxSamples = None,
    autotune_gaussian_process_noise: given.AutotuneNoise = None,
    autotune_log_file: given.AutotuneLogFile = None,
    hold: given.Hold = None,
    search: given.Search = None,
    config_file: given.ConfigFile = None,
    bucket_cap_mb: given.BucketCap = None,
    first_bucket_mb: given.FirstBucket = None,
    gradient_as_bucket_view: given.BucketView = None,
    static_graph: given.StaticGraph = None,
    hierarchical_allreduce: given.HierarchicalAllreduce = None,
    hierarchical_allgather: given.HierarchicalAllgather = None,
    fusion_threshold_mb: given.FusionThreshold = None,
    cycle_time_ms: given.CycleTime = None,
    cache_capacity: given.CacheCapacity = None,
    launcher: given.Launcher = "",
    hosts: given.Hosts = "",
    threads_per_rank: given.ThreadsPerRank = None,
    env: given.Env = None,
    launcher_arg: given.LauncherArg = None,
    oversubscribe: given.Oversubscribe = False,
    ssh: given.Ssh = "ssh",
    device: given.Device = "auto",
    model_arg: ModelArg = None,
    input_: Input = None,
    loss: Loss = "",
    optimizer: Optimizer = "sgd",
    learning_rate: LearningRate = None,
    steps: given.Steps = None,
    timeout: given.Timeout = "10m",
    output: given.Output = None,
    show_output: given.ShowOutput = False,
    json: Json = False,
    dry_run: given.DryRun = False,
    quiet: Quiet = False,
) -> None:
    """What should I change? Finds better knobs of DDP or Horovod for a MODEL, or for your own training after --.

    DDP is tuned while it trains, your script unchanged: scalescope tune --np 4 -- python train.py
    The default is kept unless another setting beats it for sure.
    """
    from rich.console import Console

    from scalescope.cli import tune_request as checked
    from scalescope.jobs.request import parse_environment, parse_hosts
    from scalescope.records.tuning import TuneRequest
    from scalescope.tuner.journal import check_log_file
    from scalescope.tuner.settings import read_found, read_settings, shown_value
    from scalescope.tuner.space import check_searched
    from scalescope.units import parse_seconds
    from scalescope.workloads import spec_from_options

    command: tuple[str, ...] = context.obj or ()
    console = Console(stderr=json or dry_run)
    if resume:
        checked.refuse_with_resume(context)
        tell_tuning(resume, console, json=json, quiet=quiet, show_output=show_output)
        return
    if start_from:
        checked.refuse_with_start_from(context)
    if bool(model) == bool(command):
        raise UsageError("name one thing to tune: a MODEL such as cnn, or -- and your command")
    if command and (model_arg or input_ or loss):
        raise UsageError("--model-arg, --input and --loss go with a MODEL: pass them in your command instead")
    if device not in ("cpu", "cuda", "auto"):
        raise UsageError(f"--device takes cpu, cuda or auto, not '{device}'")
    if offline and method and method != given.TuneMethod.offline:
        raise UsageError(f"--offline and --method {method} contradict each other: keep one of them")
    checked.check_output(output)
    files: dict[str, SettingsFile] = {}
    if config_file:
        files["--config-file"] = read_settings(config_file)
    if start_from:
        files["--start-from"] = read_found(start_from)
    named_hosts = parse_hosts(hosts)
    engine_name = checked.engine_of(engine, command, files)
    flags = {
        "bucket_cap_mb": bucket_cap_mb,
        "first_bucket_mb": first_bucket_mb,
        "gradient_as_bucket_view": gradient_as_bucket_view,
        "static_graph": static_graph,
        "hierarchical_allreduce": hierarchical_allreduce,
        "hierarchical_allgather": hierarchical_allgather,
        "fusion_threshold_mb": fusion_threshold_mb,
        "cycle_time_ms": cycle_time_ms,
        "cache_capacity": cache_capacity,
    }
    config = files.get("--config-file")
    held = checked.holds(engine_name, config.values if config else {}, hold or (), flags)
    checked.one_thread_count(threads_per_rank, held)
    options = checked.search_options(
        config.options if config else {},
        checked.SearchOptions(warmup_samples, steps_per_sample, max_samples, gp_noise, log_file),
        checked.SearchOptions(
            autotune_warmup_samples,
            autotune_steps_per_sample,
            autotune_bayes_opt_max_samples,
            autotune_gaussian_process_noise,
            autotune_log_file,
        ),
    )
    if options.log_file:
        check_log_file(options.log_file)
    checked.enough_steps(steps, options.steps_per_sample)
    request = TuneRequest(
        workload=spec_from_options(
            model,
            model_args=model_arg or [],
            inputs=input_ or [],
            loss=loss or None,
            optimizer=optimizer,
            learning_rate=learning_rate,
        )
        if model
        else None,
        command=command,
        np=checked.processes(np, named_hosts),
        batch=batch,
        engine=engine_name if engine or any(file.engine for file in files.values()) else "",
        launcher=launcher,
        hosts=named_hosts,
        method="offline" if offline else method.value if method else None,
        hold=tuple(f"{name}={shown_value(value)}" for name, value in held.items()),
        search=check_searched(engine_name, search or (), held),
        start_from=checked.setting_to_start_from(files["--start-from"].values, held) if start_from else None,
        warmup_samples=options.warmup_samples,
        steps_per_sample=options.steps_per_sample,
        max_samples=options.max_samples,
        gp_noise=options.gp_noise,
        threads_per_rank=threads_per_rank,
        env=parse_environment(env or []),
        launcher_args=checked.words_of(launcher_arg or ()),
        steps=steps,
        device=device,
        timeout_s=parse_seconds(timeout, "--timeout"),
        ssh=ssh,
        oversubscribe=oversubscribe,
        log_file=str(options.log_file or ""),
        folder=str(output or ""),
    )
    for note in () if quiet else [note for file in files.values() for note in file.notes]:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    if dry_run:
        from scalescope.tuner.run import dry_run as commands

        print("\n".join(commands(request)))
        return
    tell_tuning(request, console, json=json, quiet=quiet, show_output=show_output)
