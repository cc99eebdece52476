"""Runs benchmark sections; one that has finished is not run again unless it is named."""

import importlib
import json
import sys
import time
from pathlib import Path

from benchmarks.table import Unfinished, print_table

SECTIONS = {
    "agent": "what the agent adds to a step, beside a bare loop",
    "coverage": "1,000 simulated studies with the stopping rule: how often 95 % intervals hold the truth",
    "aa": "50 real configurations against themselves (several runs of this section on two cores)",
    "fixed_cost": "planted fixed costs and work, and what the fit finds",
    "warmup": "planted ends of warm-up, and what is found",
    "hosts": "strong, weak and batch study of the cnn on 1, 2 and 4 namespace hosts, DDP and Horovod (needs root)",
    "lab11": "resnet101 and vgg19 on Horovod: three speedups of the same work on 1 and 2 processes",
    "accuracy": "predicted against real steps, DDP on 2 ranks, 16 points over four models",
    "accuracy_unseen": "the same for three models that are not built in",
    "accuracy_horovod": "the same for Horovod over Gloo and over MPI",
    "accuracy_hosts": "the same on 2 hosts x 2 ranks with links of 200 Mbit/s and 1 Gbit/s (needs root)",
    "accuracy_cores": "the same on 2, 4, 8 and 16 ranks of a machine with 16 cores, probed at 2 and 4 only",
    "coverage_estimate": "simulated machines: how often 90 % intervals of estimates hold, and did before",
    "intervals": "real steps inside their 90 % intervals, over the accuracy and estimates sections that were run",
    "estimates_repeat": "five estimates in a row of three models that are not built in, each with three real launches",
    "estimates_busy": "ten estimates of the cnn, two of their cells run, next to a program that takes a core in bursts",
    "launch_length": "launches that end once their mean is known: time and spread against launches of 10 s",
    "profile_gpu": "a profile of resnet50 on a GPU: time and memory against batch, and batches between (needs a GPU)",
    "ddp_gpu": "what DDP costs on one GPU, wrapped against bare, and what communication costs compute (needs a GPU)",
    "capture_gpu": "what capturing costs a compiled GPT on one GPU, light and with CPU detail (needs a GPU)",
    "published": "PyTorch's own DDP benchmark, four models on 1 to 16 V100 and two bucket sizes, predicted",
    "map_speed": "how long a map takes, by cells, ranks and gradients",
    "trace_explain": "the whole explain command on traces of 200 MB: speed against the decoding floor, memory",
    "trace_horovod": "Horovod timelines of 200 MB and 2 GB: memory, speed against the decoding floor and Perfetto",
    "trace_kineto": "profiler traces of 200 MB and 2 GB: the same, and HolisticTraceAnalysis",
    "trace_fuzz": "damaged traces for ten minutes, and a timeline cut at every byte",
    "explain_truth": "a rank that is 20 ms late is named, none in balanced jobs: 20 real jobs each (two runs of this)",
    "explain_fsdp": "FSDP2 over gloo: needless synchronization, second gathers, small groups, a late rank; 20 of each",
    "explain_fixes": "what explain says that a fix would save, beside what it saves",
    "tune_hook": "what a search adds to a step, and a switch beside a step",
    "tune_power": "simulated comparisons and searches: how often what gains something, or nothing, wins",
    "tune_record": "grids of seven real cases, DDP and Horovod over MPI and Gloo, kept in benchmarks/landscapes",
    "tune_recorded": "searches over the grids that are kept: tune beside random search and Optuna",
    "tune_synthetic": "searches over simulated landscapes: samples to the best setting, and wrong winners",
    "tune_landscapes": "grids of 200 small tensors and of the transformer: tune beside random search and Optuna",
    "tune_example": "the examples' scripts, DDP and Horovod, tuned here and on 2 hosts, then measured (needs root)",
    "tune_hosts": "the same on 2 hosts x 2 ranks at 200 Mbit/s and 1 Gbit/s (needs root)",
    "tune_horovod": "the same for Horovod over MPI and Gloo, small and mid-sized, beside Horovod's own autotune",
    "tune_planted": "20 planted cases where the default is best and 20 where another is, over real noise",
    "study_hosts": "the examples' script on 2 hosts at 100 Mbit/s, studied: is what tune found confirmed? (root)",
    "overhead": "what being measured costs a training: the agent on and off in blocks by turns inside one launch",
    "verbs": "how long whole commands take that start no ranks (REVISION=... compares with another state)",
    "structure": "files, lines, and how many of them a reader has to open (REVISION=... for another state)",
    "mutants": "100 faults, one at a time: which of them the quick tests of their room notice (several runs of this)",
}  # Name and what it shows; each is a module with `run(keep) -> list of rows`, at most 20 minutes long

RESULTS = Path("results") / "bench"


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        print(f"no section '{unknown[0]}': choose from {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    for name in names or SECTIONS:
        path = RESULTS / f"{name}.json"
        if path.exists() and not names:
            result = json.loads(path.read_text())
            print(f"{name}: finished {result['finished']} (make bench SECTION={name} runs it again)")
        else:
            print(f"{name}: {SECTIONS[name]}", flush=True)
            started = time.monotonic()
            try:
                rows = importlib.import_module(f"benchmarks.{name}").run()
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
