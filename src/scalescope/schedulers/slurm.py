"""Slurm: sbatch submits, scontrol and sacct tell where a job stands, scancel ends it."""

import re
from collections.abc import Sequence

from scalescope.records.submission import BatchJob, JobState
from scalescope.schedulers.base import Refusal, check_path, commands_of, shell_of
from scalescope.text import plain

_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_SILENT = ("Unable to contact", "Connection refused", "timed out", "No route to host")
_LAST_WORDS = re.compile(
    r"\*\*\* JOB \d+ ON (?P<node>\S+) CANCELLED AT \S+(?: DUE TO (?P<why>[^*,]+?))?(?:,[^*]*)? \*\*\*"
)
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
# What Slurm says of a job that it does not take, and what to change.
_SETTINGS = (
    (r"account", "account in the --site file (sacctmgr show associations user=$USER lists yours)"),
    (r"partition", "partition in the --site file (sinfo lists them)"),
    (r"time limit", "time in the --site file (sinfo shows the limits of partitions)"),
    (r"\bqos\b", "--qos in extra of the --site file"),
    (r"gres|gpu", "gpus in the --site file"),
    (r"node count|configuration|nodes", "--nodes, --per-node, or gpus and partition in the --site file"),
    (r"unrecognized option|invalid option|invalid argument", "extra in the --site file"),
)
# Reasons for which a job that was taken never starts, and what to change.
_NEVER = {
    **dict.fromkeys(("PartitionConfig", "PartitionNodeLimit"), "--nodes, or partition in the --site file"),
    "PartitionTimeLimit": "time or partition in the --site file",
    "BadConstraints": "gpus, partition or extra in the --site file",
    **dict.fromkeys(("InvalidAccount", "AccountNotAllowed"), "account or partition in the --site file"),
    **dict.fromkeys(("InvalidQOS", "QOSNotAllowed"), "--qos in extra of the --site file"),
}


class Slurm:
    """Slurm, from 20.11 on."""

    name = "slurm"
    title = "Slurm"
    program = "sbatch"
    job_variable = "SLURM_JOB_ID"
    node_launcher = "srun-torchrun"
    rank_launcher = "srun"
    ends_within_s = 10.0

    def script(self, job: BatchJob) -> str:
        """A script for sbatch."""
        check_path(job.cwd)
        check_path(job.folder)
        site = job.site
        options = [f"--job-name={job.name}", f"--nodes={job.nodes}", f"--ntasks-per-node={job.per_node}"]
        options += [f"--cpus-per-task={job.cores_per_rank}"] if job.cores_per_rank else []
        options += [f"--gpus-per-node={site.gpus}"] if site.gpus else []
        options += [f"--time={_clock(site.time_s)}"] if site.time_s else []
        options += [f"--account={site.account}"] if site.account else []
        options += [f"--partition={site.partition}"] if site.partition else []
        output = job.folder.replace("%", "%%")
        options += ["--no-requeue", f"--chdir={_quoted(job.cwd)}", f"--output={_quoted(f'{output}/job-%j.out')}"]
        header = [shell_of(job), *(f"#SBATCH {option}" for option in (*options, *site.extra))]
        return "\n".join([*header, "", *commands_of(job), ""])

    def submit(self, script: str, after: str = "") -> tuple[str, ...]:
        """`sbatch job.sh`."""
        return self.program, "--parsable", *([f"--dependency=afterany:{after}"] if after else []), script

    def job_id(self, printed: str) -> str:
        """`17`, or `17;cluster`."""
        match = re.search(r"^(\d+)(;\S+)?$", printed.strip(), re.MULTILINE)
        return match[1] if match else ""

    def refusal(self, errors: str) -> Refusal:
        """`Batch job submission failed: Invalid partition name specified` without what all of them say."""
        lines = [line for line in errors.splitlines() if line.strip()] or ["no reason"]
        *_, line = [lines[0], *(line for line in lines if "error:" in line)]
        words = plain(re.sub(r"^.*(error|failed|sbatch):", "", line), 160)
        setting = next((setting for pattern, setting in _SETTINGS if re.search(pattern, words, re.IGNORECASE)), "")
        return Refusal(words, setting or "the --site file, or submit the script of --dry-run by hand")

    def questions(self, job_id: str) -> tuple[tuple[str, ...], ...]:
        """The controller forgets a job some minutes after its end; accounting, where it is on, does not."""
        fields = "--format=State,Reason,ExitCode,NodeList"
        return (
            ("scontrol", "show", "job", job_id),
            ("sacct", "--jobs", job_id, "--allocations", "--noheader", "--parsable2", fields),
        )

    def state(self, printed: str) -> JobState | None:
        """Read a job that scontrol or sacct shows."""
        if match := re.search(r"\bJobState=(\w+)", printed):
            told = {name: _value(name, printed) for name in ("Reason", "ExitCode", "NodeList", "StartTime")}
            return _state(match[1], **told)
        rows = [line.split("|") for line in printed.splitlines() if line.count("|") == 3]
        return _state(rows[-1][0].split()[0], *rows[-1][1:]) if rows and rows[-1][0] else None

    def is_silent(self, errors: str) -> bool:
        """`Unable to contact slurm controller (connect failure)`."""
        return any(words in errors for words in _SILENT)

    def last_words(self, output: str) -> JobState | None:
        """`slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-19T14:00:00 DUE TO TIME LIMIT ***`."""
        match = _LAST_WORDS.search(output)
        if match is None:
            return None
        why = match["why"] or "CANCELLED"
        word = "TIMEOUT" if why == "TIME LIMIT" else "NODE_FAIL" if why.startswith("NODE") else plain(why, 60)
        return _state(word, Reason="", ExitCode="", NodeList=match["node"])

    def cancel(self, job_ids: Sequence[str]) -> tuple[str, ...]:
        """`scancel 17`."""
        return "scancel", *job_ids


def _state(word: str, Reason: str, ExitCode: str, NodeList: str, StartTime: str = "") -> JobState:  # noqa: N803
    """As Slurm names the fields; an exit code is `1:0`, or `0:9` after a signal."""
    code, _, number = ExitCode.partition(":")
    if word == "COMPLETING" and code.strip("0"):  # its script has failed; a node that is gone holds the end up
        word = "FAILED"
    state = "waiting" if word in _WAITING else "running" if word in _RUNNING else "failed"
    return JobState(
        state="done" if word == "COMPLETED" else state,  # type: ignore[arg-type]
        word=word,
        reason="" if Reason == "None" else plain(Reason, 60),
        never=_NEVER.get(Reason, "") if state == "waiting" else "",
        begins=StartTime.replace("T", " ") if state == "waiting" and StartTime[:1].isdigit() else "",
        nodes=plain(NodeList, 60),
        exit_code=int(code or 0) if code.isdigit() and int(code) else int(number) if number.isdigit() else 0,
        ending=word == "COMPLETING",
        own=word in ("COMPLETED", "FAILED"),
        out_of_time=word in ("TIMEOUT", "DEADLINE"),
        cancelled=word in ("CANCELLED", "REVOKED"),
    )


def _value(name: str, printed: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S+)", printed)
    return "" if match is None or match[1] in ("(null)", "Unknown", "N/A") else match[1]


def _clock(seconds: float) -> str:
    """`1-12:00:00`; Slurm counts in minutes, so it is rounded up."""
    minutes = -int(-seconds // 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{days}-{hours:02d}:{minutes % 60:02d}:00" if days else f"{hours:02d}:{minutes % 60:02d}:00"


def _quoted(path: str) -> str:
    return f'"{path}"' if re.search(r"[^\w./%+-]", path) else path


SLURM = Slurm()
