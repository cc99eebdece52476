"""Runs benchmark sections; one that has finished is not run again unless it is named."""

import importlib
import json
import sys
import time
from pathlib import Path

from benchmarks.shared import Unfinished, print_table
from scalescope.errors import UsageError

SECTIONS: dict[str, dict[str, dict[str, str]]] = {
    "accuracy of estimates": {
        "accuracy": {
            "accuracy": "predicted against real steps, DDP on 2 ranks, 20 points over six models",
            "accuracy_unseen": "the same for three models that are not built in",
            "accuracy_horovod": "the same for Horovod over Gloo and over MPI",
            "accuracy_hosts": "the same on 2 hosts x 2 ranks with links of 200 Mbit/s and 1 Gbit/s (needs root)",
            "accuracy_cores": "the same on 2, 4, 8 and 16 ranks of a machine with 16 cores, probed at some and at all",
            "intervals": "real steps inside their 90 % intervals, over the sections of this family that were run",
        },
        "estimates": {
            "estimates_repeat": "five estimates in a row of three models that are not built in, and real launches",
            "launch_length": "launches that end once their mean is known: time and spread against launches of 10 s",
        },
    },
    "rank 0 of N": {
        "rank_zero": {
            "rank_zero": "scripts predicted as rank 0 of N, DDP and FSDP2, against real gloo ranks of this machine"
        },
        "rank_zero_gpu": {
            "rank_zero_gpu": "a GPT as rank 0 of 1 to 512, DDP and FSDP2, against real ranks of one GPU (needs a GPU)"
        },
    },
    "published": {
        "published": {
            "published": "PyTorch's own DDP benchmark, four models on 1 to 16 V100 and two bucket sizes, predicted",
            "published_fsdp": "published FSDP and HSDP steps on A100s, predicted from the fewest GPUs",
        },
    },
    "measurements and their intervals": {
        "coverage": {
            "coverage": "1,000 simulated studies with the stopping rule: how often 95 % intervals hold the truth",
            "aa": "50 real configurations against themselves (several runs of this section on two cores)",
        },
        "warmup": {"warmup": "planted ends of warm-up, and what is found"},
        "fixed_cost": {"fixed_cost": "planted one-time costs and work, and what the fit finds"},
    },
    "explain": {
        "explain": {
            "explain_truth": "a rank that is 20 ms late is named, none in balanced jobs: 20 real jobs each (two runs)",
            "explain_fixes": "the gain of a fix, as explain predicts it and as it is",
            "explain_fsdp": "FSDP2 over gloo: needless synchronization, second gathers, small groups, a late rank",
        },
        "traces": {
            "trace_explain": "the whole explain command on traces of 200 MB: speed against the decoding floor, memory",
            "trace_fuzz": "damaged traces for ten minutes, and a timeline cut at every byte",
        },
    },
    "tune": {
        "tune_example": {
            "tune_example": "the examples' scripts, tuned here and on 2 hosts, then measured (needs root)"
        },
        "tune_power": {
            "tune_power": "simulated comparisons and searches: how often what gains something, or nothing, wins"
        },
        "tune_recorded": {
            "tune_record": "grids of real cases, DDP and Horovod over MPI and Gloo, that benchmarks/landscapes lacks",
            "tune_recorded": "searches over the grids that are kept: tune and random search",
        },
        "tune_planted": {
            "tune_planted": "20 planted cases where the default is best and 20 where another is, over real noise"
        },
    },
    "speed": {
        "agent": {
            "agent": "what the agent adds to a step of one process",
            "overhead": "what being measured costs a training: blocks with and without the agent in one launch",
            "tune_hook": "what a search adds to a step, and how long a switch takes",
            "recorded": "what recording adds to a collective of a script that runs as rank 0 of N",
        },
        "speed": {
            "verbs": "how long commands take that start no ranks (REVISION=... compares with another state)",
            "map_speed": "how long a map takes, by cells, ranks and gradients",
        },
    },
    "GPUs": {
        "gpu": {
            "profile_gpu": "a profile of resnet50 on a GPU: time and memory of batch sizes between (needs a GPU)",
            "ddp_gpu": "what DDP costs on one GPU, and what communication costs compute (needs a GPU)",
            "capture_gpu": "what capturing costs a compiled GPT on one GPU, light and with CPU detail (needs a GPU)",
        },
    },
    "tests": {
        "mutants": {"mutants": "100 faults, one at a time: which of them tests of their room notice (several runs)"},
    },
}  # By family a file and its sections: functions that return rows, each at most 20 minutes long, with what they show
FILES = {name: file for files in SECTIONS.values() for file, sections in files.items() for name in sections}
SHOWS = {name: shows for files in SECTIONS.values() for sections in files.values() for name, shows in sections.items()}

RESULTS = Path("results") / "bench"


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in FILES]
    if unknown:
        print(f"no section '{unknown[0]}': choose from")
        for family, files in SECTIONS.items():
            rows = [{family: name, "": shows} for sections in files.values() for name, shows in sections.items()]
            print_table(rows)
        return 2
    for name in names or FILES:
        path = RESULTS / f"{name}.json"
        if path.exists() and not names:
            result = json.loads(path.read_text())
            print(f"{name}: finished {result['finished']} (make bench SECTION={name} runs it again)")
        else:
            print(f"{name}: {SHOWS[name]}", flush=True)
            started = time.monotonic()
            try:
                rows = getattr(importlib.import_module(f"benchmarks.{FILES[name]}"), name)()
            except Unfinished as so_far:
                print_table(so_far.rows)
                print(f"{name}: not finished; make bench SECTION={name} goes on")
                continue
            except UsageError as problem:
                print(f"{name}: not run: {problem}\n", flush=True)
                continue
            finished = time.strftime("%Y-%m-%d %H:%M")
            result = {"finished": finished, "seconds": time.monotonic() - started, "rows": rows}
            RESULTS.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result, indent=1))
        print_table(result["rows"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
