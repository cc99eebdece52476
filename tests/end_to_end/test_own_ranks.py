"""Scripts that start their ranks themselves, or do not bear a launcher: started as they are, and that is said."""

import json
import sys

ALONE_UNDER_A_LAUNCHER = """
import os, torch, torch.distributed as dist
ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks == 1 and "RANK" in os.environ:
    raise RuntimeError("takes the path of many ranks")
if ranks > 1:
    dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


def measured(scalescope, script, *words: str) -> tuple[dict, str]:
    """The only point of a measurement on 2 processes, and the line that its ranks were started with."""
    command = (sys.executable, str(script), "{np}")
    done = scalescope("measure", "--np", "2", *words, "--timeout", "100s", "-o", "out", "--json", "--", *command)
    (point,) = json.loads(done.stdout)["points"]
    return point, (scalescope.folder / "out" / point["folder"] / "command.txt").read_text()


def test_ranks_that_a_script_spawns_are_measured(scalescope, scripts) -> None:
    point, line = measured(scalescope, scripts / "spawns_ranks.py")
    assert (point["engine_seen"], point["np"], point["steps"], point["exchanges"]) == ("ddp", 2, 8, True)
    assert "torch.distributed.run" not in line
    assert not any("as it is" in warning for warning in point["warnings"])  # its source tells: nothing was tried first


def test_ranks_that_a_script_starts_by_running_itself_are_measured(scalescope, scripts) -> None:
    point, line = measured(scalescope, scripts / "reruns_itself.py")
    assert (point["engine_seen"], point["np"], point["steps"]) == ("ddp", 2, 8)
    assert "torch.distributed.run" not in line
    assert "the script starts its ranks itself, so it was started as it is, without torchrun" in point["warnings"]


def test_a_script_that_fails_under_a_launcher_alone_and_never_exchanges(scalescope) -> None:
    (scalescope.folder / "train.py").write_text(ALONE_UNDER_A_LAUNCHER)
    done = scalescope("measure", "--np", "1,2", "-o", "out", "--json", "--", sys.executable, "train.py")
    found = json.loads(done.stdout)
    one, two = found["points"]
    assert [(point["np"], point["engine"], point["engine_seen"]) for point in (one, two)] == [
        (1, "none", "none"),
        (2, "none", "none"),
    ]
    (why,) = [warning for warning in one["warnings"] if "under torchrun" in warning]
    assert f"started again as plain `{sys.executable} train.py`" in why
    assert not any("under torchrun" in warning for warning in two["warnings"])
    assert (one["exchanges"], two["exchanges"]) == (None, False)
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("Next: ")
    (answer,) = [
        index for index, line in enumerate(lines) if line.startswith("The ranks never exchanged gradients on 2")
    ]
    assert not any(line.startswith("weak scaling") for line in lines[:answer]), "the answer stands above its table"


def test_a_plain_start_is_used_when_it_is_asked_for(scalescope) -> None:
    (scalescope.folder / "train.py").write_text(ALONE_UNDER_A_LAUNCHER)
    done = scalescope.in_this_process("measure", "--engine", "none", "--dry-run", "--", sys.executable, "train.py")
    title, line, cost = done.stdout.splitlines()
    assert title == "# none-np1"
    assert "launches" in cost
    assert line.endswith(f"{sys.executable} train.py")
    assert "torch.distributed.run" not in line
    refused = scalescope.in_this_process("measure", "--engine", "none", "--np", "2", "--", "python", "train.py", code=2)
    assert "--np 1" in refused.stderr
