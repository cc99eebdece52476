"""Scripts as people write and start them, as rank 0 of 8: which run, and what they would send in a step."""

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from test_user_scripts import ENVIRONMENT, FABRIC, HERE, HF

import needs
from scalescope.jobs.hosts import free_port
from scalescope.jobs.rank_zero import run_as_rank_zero

ACCELERATE = "accelerate launch --multi_gpu --num_processes 2 --main_process_port PORT"
# Script and arguments, in which OUT is a folder; libraries; engine; what starts it, if not Python alone.
SCRIPTS = [
    ("lightning_trainer.py OUT", ("lightning",), "ddp", ""),
    ("lightning_fsdp2.py OUT", ("lightning",), "fsdp2", ""),  # whose mesh is written for two ranks
    ("fabric_loop.py OUT", ("lightning",), "ddp", FABRIC),
    ("accelerate_loop.py OUT", ("accelerate",), "ddp", ACCELERATE),
    ("hf_trainer.py OUT", HF, "ddp", ""),
    ("hf_fsdp2.py OUT", HF, "fsdp2", ""),
    ("ignite_trainer.py OUT", ("pytorch-ignite",), "ddp", ""),
    ("lbfgs.py OUT", ("torch",), "ddp", ""),
    ("grad_scaler.py OUT", ("torch",), "ddp", ""),
    ("flat_buffer.py OUT", ("torch",), "ddp", ""),
    ("linear_probe.py OUT", ("torch",), "ddp", ""),
    ("uneven_join.py OUT", ("torch",), "ddp", ""),
    ("replicated.py OUT", ("torch",), "ddp", ""),
    ("compiled_ddp.py OUT", ("torch",), "ddp", ""),
    ("fsdp2_transformer.py OUT", ("torch",), "fsdp2", ""),
    ("fsdp2.py OUT mixed accumulate checkpoint offload", ("torch",), "fsdp2", ""),
]


@pytest.mark.launches
@pytest.mark.user_scripts
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("words", "libraries", "engine", "starter"), [pytest.param(*each, id=f"{each[3]} {each[0]}") for each in SCRIPTS]
)
def test_an_unchanged_script_runs_as_rank_zero_of_eight(
    words: str,
    libraries: tuple[str, ...],
    engine: str,
    starter: str,
    tmp_path: Path,
    record_property: Callable[..., None],
) -> None:
    needs.installed(*libraries)
    ranks = 2 if words.startswith("lightning_fsdp2") else 8
    script, *arguments = words.replace("OUT", str(tmp_path)).split()
    started = starter.replace("PORT", str(free_port())).split() or [sys.executable]
    record = run_as_rank_zero(
        (*started, str(HERE / script), *arguments),
        np=ranks,
        threads=1,
        seconds=0.0,
        timeout_s=120.0,
        folder=tmp_path / "records",
        env=ENVIRONMENT,
    )
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in libraries)
    sent = sum(message.bytes for message in record.messages)
    outcome = f"{record.engine}, {len(record.messages)} collectives with {sent:,} bytes in a step"
    outcome += "" if ranks == 8 else f", of {ranks}"
    record_property("as rank 0", (" ".join(f"{starter} {words.replace('OUT', '')}".split()), versions, outcome))
    assert record.engine == engine
    assert record.finite == (script != "grad_scaler.py")  # which makes its loss overflow
    assert {message.ranks for message in record.messages} == {ranks}
    assert not list(tmp_path.glob("*.pt"))
