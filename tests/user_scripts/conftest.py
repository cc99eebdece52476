"""Prints the tables of docs/concepts/agent.md: scripts that ended as in their plain run, and that ran as rank 0."""

import pytest

VERBS = ("measure", "explain", "tune")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    alone: list[tuple[str, ...]] = [("script", "libraries", "as rank 0 of 8"), ("---",) * 3]
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            told = dict(report.user_properties)
            if "as rank 0" in told:
                alone.append(told["as rank 0"])
            if "script" in told:
                script, versions, verb = told["script"]
                rows.setdefault((script, versions), {})[verb] = told.get("outcome", "FAILED")
    if len(alone) > 2:
        terminalreporter.section("as rank 0 of 8")
        for cells in [*alone[:2], *sorted(alone[2:])]:
            terminalreporter.write_line(f"| {' | '.join(cells)} |")
    if not rows:
        return
    table = [("script", "libraries", *VERBS), ("---",) * (2 + len(VERBS))]
    table += [(*row, *(cells.get(verb, "not run") for verb in VERBS)) for row, cells in sorted(rows.items())]
    terminalreporter.section("parameters at the end, compared with the plain run")
    for cells in table:
        terminalreporter.write_line(f"| {' | '.join(cells)} |")
