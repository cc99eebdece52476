"""Jobs that were submitted and that nobody waits for."""

from typing import Any

from scalescope.records.submission import Submission
from scalescope.show.document import Document
from scalescope.text import listed, plural


def document(submission: Submission) -> Document:
    """Name the jobs that were not seen to end."""
    jobs = submission.open_jobs
    named = [f"{job.id}" + (f" ({job.what})" if job.what else "") for job in jobs]
    many, nodes = "jobs" if len(jobs) > 1 else "job", max((job.nodes for job in jobs), default=0)
    return Document(
        answer=f"Submitted to {submission.scheduler}: {many} {listed(named)}, {plural(nodes, 'node')}.",
        json=lambda: submission_json(submission),
    )


def submission_json(submission: Submission) -> dict[str, Any]:
    """Jobs of a folder and how they ended."""
    return {
        "kind": "submission",
        "verb": submission.verb,
        "scheduler": submission.scheduler,
        "folder": str(submission.folder),
        "jobs": [
            {
                "id": job.id,
                "what": job.what,
                "nodes": job.nodes,
                "script": job.script,
                "ended": job.ended.word if job.ended else None,
            }
            for job in submission.jobs
        ],
    }
