"""Ranks on two hosts and on two Slurm nodes, with both engines."""

import json
import os
import subprocess
import sys

import needs
from command_line import CommandLine


def measure(run, *words: str, folder) -> list[dict]:
    command = CommandLine(folder).words("measure", "--json", "-o", str(folder / "out"), *words)
    done = run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["points"]


def hosts_of(folder, point) -> list[str]:
    """The hosts that wrote a record, one per rank."""
    return sorted(path.name.split("-")[1] for path in (folder / "out" / point["folder"]).glob("agent-*.jsonl"))


def test_torchrun_and_ddp_over_two_hosts(hosts, scripts, tmp_path) -> None:
    lab = hosts(2)
    words = ("--np", "3", "--hosts", "h1:2,h2:2", "--ssh", str(lab.ssh), "--steps", "12")
    command = ("--", sys.executable, str(scripts / "ddp.py"))
    (point,) = measure(lambda argv, **options: lab.run("h1", argv, **options), *words, *command, folder=tmp_path)
    assert (point["engine_seen"], point["steps"]) == ("ddp", 12)
    assert hosts_of(tmp_path, point) == ["h1", "h1", "h2"]


def test_mpirun_and_horovod_over_two_hosts(hosts, tmp_path) -> None:
    needs.horovod()
    needs.openmpi()
    lab = hosts(2)
    network = f"--mca btl tcp,self --mca btl_tcp_if_include {lab.network} --mca oob_tcp_if_include {lab.network}"
    words = ("cnn", "--engine", "horovod", "--np", "2", "--hosts", "h1:1,h2:1", "--ssh", str(lab.ssh), "--steps", "6")
    run = lambda argv, **options: lab.run("h1", argv, **options)  # noqa: E731
    (point,) = measure(run, *words, "--batch", "4", "--launcher-arg", network, folder=tmp_path)
    assert (point["engine_seen"], point["backend"]) == ("horovod", "mpi")
    assert hosts_of(tmp_path, point) == ["h1", "h2"]


def test_horovodrun_and_horovod_over_gloo_on_two_hosts(hosts, tmp_path) -> None:
    needs.horovod()
    lab = hosts(2)
    words = ("cnn", "--engine", "horovod", "--knob", "controller=gloo", "--np", "2", "--hosts", "h1:1,h2:1")
    words += ("--env", f"GLOO_SOCKET_IFNAME={lab.interface}")
    run = lambda argv, **options: lab.run("h1", argv, **options)  # noqa: E731
    (point,) = measure(run, *words, "--steps", "6", "--batch", "4", "--launches", "1", folder=tmp_path)
    assert (point["engine_seen"], point["backend"]) == ("horovod", "gloo")
    assert hosts_of(tmp_path, point) == ["h1", "h2"]


def test_an_unreachable_host_is_one_clear_line(hosts, scalescope) -> None:
    lab = hosts(2)
    words = ("measure", "mlp", "--np", "2", "--hosts", "h1:1,nowhere:1", "--ssh", str(lab.ssh))
    done = scalescope.in_this_process(*words, code=2)
    assert done.stderr.count("\n") == 1
    assert "host 'nowhere' cannot be reached" in done.stderr


def test_srun_and_horovod_over_two_nodes(slurm, tmp_path) -> None:
    needs.horovod()
    needs.openmpi()
    words = ("mlp", "--model-arg", "width=64", "--engine", "horovod", "--steps", "8")
    words += ("--launcher", "srun", "--np", "2", "--hosts", "n1:1,n2:1")
    (point,) = measure(lambda argv, **options: slurm.allocate(2, argv, **options), *words, folder=tmp_path)
    assert (point["engine_seen"], point["steps"]) == ("horovod", 8)
    assert hosts_of(tmp_path, point) == ["n1", "n2"]


def own_srun_line(slurm, folder, scripts, np: str, *line: str) -> list[dict]:
    """Measure a DDP script that this line starts inside an allocation of all four nodes of two CPUs."""
    first = "MASTER_ADDR=$(scontrol show hostnames $SLURM_STEP_NODELIST | head -1) MASTER_PORT=29517"
    training = f"{sys.executable} {scripts / 'ddp.py'} --steps 12"
    script = f"RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS {first} exec {training}"
    limits = ("--relative-to", "smallest", "--timeout", "100s")  # ended early, torch's gloo threads abort now and then
    words = ("--np", np, *limits, "--", *line, "sh", "-c", script)
    return measure(lambda argv, **options: slurm.allocate(4, argv, **options), *words, folder=folder)


def test_an_own_srun_line_spreads_its_ranks_and_is_warned(slurm, scripts, tmp_path) -> None:
    """Slurm places its ranks: neither loopback nor the slots and threads of this machine are of use to them."""
    (point,) = own_srun_line(slurm, tmp_path, scripts, "3", "srun", "-n", "{np}")
    assert (point["np"], point["engine_seen"], point["nodes"], point["threads_per_rank"]) == (3, "ddp", 3, None)
    assert point["rank_hosts"] == hosts_of(tmp_path, point) == ["n1", "n2", "n3"]
    assert "3 ranks ran on 3 nodes and 2 nodes would hold them" in " ".join(point["warnings"])
    command = (tmp_path / "out" / point["folder"] / "command.txt").read_text()
    assert "GLOO_SOCKET_IFNAME" not in command
    assert "OMP_NUM_THREADS" not in command


def test_an_own_srun_line_with_its_nodes_fills_them(slurm, scripts, tmp_path) -> None:
    line = ("srun", "-N", "{nodes}", "-n", "{np}", "env", "PER_NODE={per_node}")
    two, three = own_srun_line(slurm, tmp_path, scripts, "2,3", *line)
    assert [(point["nodes"], len(set(point["rank_hosts"]))) for point in (two, three)] == [(1, 1), (2, 2)]
    assert three["rank_hosts"][0] == three["rank_hosts"][1]
    assert "would hold them" not in " ".join([*two["warnings"], *three["warnings"]])
    commands = [(tmp_path / "out" / point["folder"] / "command.txt").read_text() for point in (two, three)]
    assert ["srun -N 1 -n 2 env PER_NODE=2 " in commands[0], "srun -N 2 -n 3 env PER_NODE=2 " in commands[1]] == [
        True
    ] * 2


def test_points_of_several_slurm_jobs_make_one_curve(slurm, tmp_path) -> None:
    """Two processes in one job; four added in a second, with the baseline once more; three in a folder of a third."""
    run = lambda argv, **options: slurm.allocate(2, argv, **options)  # noqa: E731
    words = (
        "mlp",
        "--model-arg",
        "width=64",
        "--engine",
        "ddp",
        "--launcher",
        "srun",
        "--steps",
        "8",
        "--launches",
        "1",
    )
    measure(run, *words, "--np", "1,2", folder=tmp_path)
    resumed = CommandLine(tmp_path).words("measure", "--resume", "out", "--np", "4", "--json")
    done = run(resumed, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    rounds = {each["round"]: [] for each in document["launches"]}
    for each in document["launches"]:
        rounds[each["round"]].append((each["engine"], each["np"]))
    assert {number: sorted(each) for number, each in rounds.items()} == {
        1: [("ddp", 1), ("ddp", 2), ("none", 1)],
        2: [("ddp", 4), ("none", 1)],
    }
    jobs = {each["round"]: each["batch_job"] for each in document["launches"]}
    assert jobs[1].startswith("slurm ")
    assert jobs[1] != jobs[2]
    four = next(each for each in document["launches"] if each["np"] == 4)
    assert [(host["name"], host["ranks"]) for host in four["hosts"]] == [("n1", [0, 1]), ("n2", [2, 3])]
    assert all(host["cores"] and host["cpu"] for host in four["hosts"])
    assert "apart" not in " ".join(document["warnings"])
    own = tmp_path / "own"
    own.mkdir()
    measure(run, *words, "--np", "3", "--relative-to", "smallest", folder=own)
    report = CommandLine(tmp_path).words("report", "out", "own/out", "--json", pictures=True)
    done = subprocess.run(report, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (joined,) = json.loads(done.stdout)["results"]
    assert [(point["engine"], point["np"]) for point in joined["points"]] == [
        ("none", 1),
        ("ddp", 1),
        ("ddp", 2),
        ("ddp", 3),
        ("ddp", 4),
    ]
    assert "ddp-np3-b32: measured apart from none-np1-b32, the baseline" in " ".join(joined["warnings"])


def test_srun_outside_an_allocation_says_how_to_get_one(scalescope, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "")
    done = scalescope.in_this_process("measure", "mlp", "--launcher", "srun", code=2)
    assert "salloc" in done.stderr
