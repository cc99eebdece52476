"""Runs benchmark sections; one that has finished is not run again unless it is named."""

import importlib
import json
import sys
import time
from pathlib import Path

from benchmarks.shared import Unfinished, print_table

SECTIONS = {
    "agent": {
        "agent": "what the agent adds to a step, beside a bare loop",
        "overhead": "what being measured costs a training: the agent on and off in blocks by turns inside one launch",
        "tune_hook": "what a search adds to a step, and a switch beside a step",
        "recorded": "what recording adds to a collective of a script that runs as rank 0 of N",
    },
    "coverage": {
        "coverage": "1,000 simulated studies with the stopping rule: how often 95 % intervals hold the truth",
        "aa": "50 real configurations against themselves (several runs of this section on two cores)",
    },
    "warmup": {"warmup": "planted ends of warm-up, and what is found"},
    "studies": {
        "fixed_cost": "planted fixed costs and work, and what the fit finds",
        "hosts": "strong, weak and batch study of the cnn on 1, 2 and 4 namespace hosts, three engines (needs root)",
        "lab11": "resnet101 and vgg19 on Horovod: three speedups of the same work on 1 and 2 processes",
        "study_hosts": "the examples' script on 2 hosts at 100 Mbit/s, studied: is what tune found confirmed? (root)",
    },
    "accuracy": {
        "accuracy": "predicted against real steps, DDP on 2 ranks, 20 points over six models",
        "accuracy_unseen": "the same for three models that are not built in",
        "accuracy_horovod": "the same for Horovod over Gloo and over MPI",
        "accuracy_hosts": "the same on 2 hosts x 2 ranks with links of 200 Mbit/s and 1 Gbit/s (needs root)",
        "accuracy_cores": "the same on 2, 4, 8 and 16 ranks of a machine with 16 cores, probed at 2 and 4 only",
    },
    "rank_zero": {
        "rank_zero": "scripts predicted as rank 0 of N, DDP and FSDP2, against real gloo ranks of this machine"
    },
    "rank_zero_gpu": {
        "rank_zero_gpu": "a GPT as rank 0 of 1 to 512, DDP and FSDP2, against real ranks of one GPU (needs a GPU)"
    },
    "estimates": {
        "estimates_repeat": "five estimates in a row of three models that are not built in, each with real launches",
        "launch_length": "launches that end once their mean is known: time and spread against launches of 10 s",
    },
    "intervals": {
        "intervals": "real steps inside their 90 % intervals, over the accuracy and estimates sections that were run",
        "coverage_estimate": "simulated machines: how often 90 % intervals of estimates hold",
    },
    "published": {
        "published": "PyTorch's own DDP benchmark, four models on 1 to 16 V100 and two bucket sizes, predicted"
    },
    "published_fsdp": {
        "published_fsdp": "published FSDP and HSDP steps on A100s, predicted from the fewest GPUs, beside no change"
    },
    "gpu": {
        "profile_gpu": "a profile of resnet50 on a GPU: time and memory against batch, batches between (needs a GPU)",
        "ddp_gpu": "what DDP costs on one GPU, wrapped against bare, what communication costs compute (needs a GPU)",
    },
    "capture_gpu": {
        "capture_gpu": "what capturing costs a compiled GPT on one GPU, light and with CPU detail (needs a GPU)"
    },
    "explain": {
        "explain_truth": "a rank that is 20 ms late is named, none in balanced jobs: 20 real jobs each (two runs)",
        "explain_fixes": "what explain says that a fix would save, beside what it saves",
        "explain_fsdp": "FSDP2 over gloo: needless synchronization, second gathers, small groups, a late rank",
    },
    "trace_explain": {
        "trace_explain": "the whole explain command on traces of 200 MB: speed against the decoding floor, memory"
    },
    "trace_fuzz": {"trace_fuzz": "damaged traces for ten minutes, and a timeline cut at every byte"},
    "tune_power": {
        "tune_power": "simulated comparisons and searches: how often what gains something, or nothing, wins"
    },
    "tune_recorded": {
        "tune_record": "grids of real cases, DDP and Horovod over MPI and Gloo, that benchmarks/landscapes lacks",
        "tune_recorded": "searches over the grids that are kept: tune beside random search",
    },
    "tune_planted": {
        "tune_planted": "20 planted cases where the default is best and 20 where another is, over real noise"
    },
    "tune_example": {
        "tune_example": "the examples' scripts, DDP and Horovod, tuned here and on 2 hosts, then measured (needs root)"
    },
    "speed": {
        "verbs": "how long whole commands take that start no ranks (REVISION=... compares with another state)",
        "map_speed": "how long a map takes, by cells, ranks and gradients",
    },
    "mutants": {"mutants": "100 faults, one at a time: which of them quick tests of their room notice (several runs)"},
}  # A file, and its sections: functions that return rows, each at most 20 minutes long, with what they show
FILES = {name: file for file, sections in SECTIONS.items() for name in sections}

RESULTS = Path("results") / "bench"


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in FILES]
    if unknown:
        print(f"no section '{unknown[0]}': choose from {', '.join(FILES)}", file=sys.stderr)
        return 2
    for name in names or FILES:
        path = RESULTS / f"{name}.json"
        if path.exists() and not names:
            result = json.loads(path.read_text())
            print(f"{name}: finished {result['finished']} (make bench SECTION={name} runs it again)")
        else:
            print(f"{name}: {SECTIONS[FILES[name]][name]}", flush=True)
            started = time.monotonic()
            try:
                rows = getattr(importlib.import_module(f"benchmarks.{FILES[name]}"), name)()
            except Unfinished as so_far:
                print_table(so_far.rows)
                print(f"{name}: not finished; make bench SECTION={name} goes on")
                continue
            finished = time.strftime("%Y-%m-%d %H:%M")
            result = {"finished": finished, "seconds": time.monotonic() - started, "rows": rows}
            RESULTS.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result, indent=1))
        print_table(result["rows"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
