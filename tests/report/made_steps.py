"""Steps made by hand, as traces tell them."""

from scalescope.records.timeline import Activity, Span, Step, Timeline

MIB = 2**20


def ddp_step(ranks: int, straggler: int | None, source: str = "profiler traces", fast: float = 1.0) -> Timeline:
    """Input, forward, backward over three buckets, optimizer; all wait for the straggler in the last bucket."""
    spans: list[Span] = []
    steps = []
    last_ready = 0.090 if straggler is not None else 0.070
    for rank in range(ranks):
        late = 0.020 if rank == straggler else 0.0003 * (rank % 5)
        begin = 0.003 + late

        def add(activity: Activity, start: float, end: float, name: str = "", size: int = 0, rank: int = rank) -> None:
            spans.append(
                Span(rank=rank, activity=activity, start_s=fast * start, end_s=fast * end, name=name, bytes=size)
            )

        add("input", 0.0005, 0.003, "enumerate(DataLoader)")
        add("forward", begin, begin + 0.022, "DistributedDataParallel.forward")
        add("backward", begin + 0.0225, begin + 0.066, "backward")
        add("copy", begin + 0.066, begin + 0.067, "copy_bucket_to_grad")
        if ranks > 1:
            end = last_ready + 0.009
            add("communication", begin + 0.030, last_ready - 0.020, "gloo:all_reduce bucket 0", MIB)
            add("communication", begin + 0.045, last_ready + 0.002, "gloo:all_reduce bucket 1", 25 * MIB)
            add("communication", begin + 0.066, end, "gloo:all_reduce bucket 2", 9 * MIB)
        else:
            end = begin + 0.067
        add("optimizer", end + 0.0005, end + 0.0045, "Optimizer.step#SGD.step")
        steps.append(Step(rank=rank, start_s=0.0, end_s=fast * (end + 0.005)))
    return Timeline(source=source, spans=tuple(spans), steps=tuple(steps))


def horovod_step(name: str) -> Timeline:
    """Sixteen gradients that come one by one and leave in three messages."""
    spans = []
    for index in range(16):
        submitted, message = 0.002 * index, index // 6
        sent = (0.014, 0.027, 0.036)[message]
        names = {"rank": 0, "name": f"{name}.{index}.weight", "bytes": (index + 1) * MIB}
        spans.append(Span(activity="negotiation", start_s=submitted, end_s=sent - 0.001, **names))  # type: ignore[arg-type]
        spans.append(Span(activity="communication", start_s=sent, end_s=sent + 0.004, **names))  # type: ignore[arg-type]
    return Timeline(source="horovod timeline", spans=tuple(spans), steps=(Step(rank=0, start_s=0.0, end_s=0.050),))
