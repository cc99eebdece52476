"""Prints the table of docs/concepts/agent.md: which script ended with the parameters of its plain run."""

import pytest

VERBS = ("measure", "explain", "tune")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            told = dict(report.user_properties)
            if "script" in told:
                script, versions, verb = told["script"]
                rows.setdefault((script, versions), {})[verb] = told.get("outcome", "FAILED")
    if not rows:
        return
    table = [("script", "libraries", *VERBS), ("---",) * (2 + len(VERBS))]
    table += [(*row, *(cells.get(verb, "not run") for verb in VERBS)) for row, cells in sorted(rows.items())]
    terminalreporter.section("parameters at the end, compared with the plain run")
    for cells in table:
        terminalreporter.write_line(f"| {' | '.join(cells)} |")
