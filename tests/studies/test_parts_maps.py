"""How a study makes its map: what it asks of estimate and probe, and of a script's surveys."""

from pathlib import Path

import msgspec
import pytest
from recorded_verbs import OF_MODEL, SCRIPT, Verbs, done, part_of
from test_expectations import MODEL
from test_measurement import measurement, run
from test_script_map import survey

from scalescope.errors import WorkFailed
from scalescope.jobs.hosts import expecting
from scalescope.progress import Progress
from scalescope.records.files import CLUSTER, PLAN, PREDICTION, PROFILE
from scalescope.records.job import Host
from scalescope.records.prediction import Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimatePlan, Fingerprint, MeasureRequest
from scalescope.records.run import Measurement
from scalescope.records.store import load, save
from scalescope.studies import parts

MACHINE = Fingerprint(host="h", cpu="c", cores=2, gpus=(), python="3", torch="2")


def test_the_map_of_a_model_is_asked_of_estimate_unless_it_is_finished(tmp_path: Path, verbs: Verbs) -> None:
    done(tmp_path, "estimate")
    ((_, asked, _),) = verbs.asked
    assert (asked.workload, asked.np, asked.batch, asked.engine) == (MODEL, (1, 2, 4), (8, 16), "ddp")
    assert (asked.cluster, asked.folder, asked.seconds) == ("", str(tmp_path / "estimate"), 18.0)
    plan = EstimatePlan(request=asked, fingerprint=MACHINE)
    save(plan, tmp_path / "estimate" / PLAN)
    done(tmp_path, "estimate")
    save(msgspec.structs.replace(plan, finished=True), tmp_path / "estimate" / PLAN)
    done(tmp_path, "estimate")
    assert verbs.names() == ["estimate", "estimate"]


def test_named_hosts_are_probed_once_before_their_map(tmp_path: Path, verbs: Verbs) -> None:
    request = msgspec.structs.replace(OF_MODEL, hosts=(Host("a", 2), Host("b", 2)), env={"A": "1"}, ssh="rsh")
    done(tmp_path, "estimate", request, threads_per_rank=3)
    done(tmp_path, "estimate", request, threads_per_rank=3)
    assert verbs.names() == ["probe", "estimate", "estimate"]
    probe, estimate = (asked for _, asked, _ in verbs.asked[:2])
    assert (estimate.cluster, estimate.env) == (str(tmp_path / CLUSTER), {"A": "1"})
    assert (probe.backends, probe.slots, probe.device, probe.threads_per_rank) == (("gloo",), None, "cpu", 3)
    assert (probe.hosts, probe.ssh, probe.env, probe.seconds) == (request.hosts, "rsh", {"A": "1"}, 6.0)
    assert probe.folder == str(tmp_path / "probe")


@pytest.mark.parametrize(
    ("device", "gpus", "found"),
    [("auto", "0,1", ("nccl", "cuda")), ("cpu", "0,1", ("gloo", "cpu")), ("auto", "", ("gloo", "cpu"))],
)
def test_links_are_probed_on_the_device_of_the_ranks(
    tmp_path: Path, verbs: Verbs, monkeypatch: pytest.MonkeyPatch, device: str, gpus: str, found: tuple[str, str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    done(tmp_path, "estimate", msgspec.structs.replace(OF_MODEL, hosts=(Host("a", 4),), device=device))
    probe = verbs.asked[0][1]
    assert ((probe.backends[0], probe.device), probe.threads_per_rank) == (found, 1)


def surveyed(folder: Path, verbs: Verbs) -> None:
    """Launches of one and of four processes, each with its survey."""
    verbs.runs = [run("none", 1, 80, folder="one"), run("ddp", 4, 80, folder="four"), run("ddp", 4, 80, folder="none")]
    for name, ranks in (("one", 1), ("four", 4)):
        place = folder / "estimate" / "survey" / name
        place.mkdir(parents=True)
        (place / "survey.json").write_bytes(msgspec.json.encode(survey(ranks)))


@pytest.fixture
def leaves_surveys(tmp_path: Path, verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Verbs.measure

    def measure(request: MeasureRequest, progress: Progress) -> Measurement:
        original(verbs, request, progress)
        surveyed(tmp_path, verbs)
        return measurement(*verbs.runs)

    monkeypatch.setattr(parts, "measure", measure)


@pytest.mark.usefixtures("leaves_surveys")
def test_links_are_probed_on_the_device_that_the_script_chose(
    tmp_path: Path, verbs: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    done(tmp_path, "estimate", msgspec.structs.replace(SCRIPT, device="auto"), engines=("ddp",), batches=())
    probe = verbs.asked[-1][1]
    assert (probe.backends, probe.device) == (("gloo",), "cpu")
    assert load(tmp_path / "estimate" / PREDICTION, Prediction).trusted


@pytest.mark.usefixtures("leaves_surveys")
def test_a_script_is_surveyed_and_its_links_probed(tmp_path: Path, verbs: Verbs) -> None:
    done(tmp_path, "estimate", SCRIPT, engines=("ddp",), batches=())
    assert verbs.names() == ["measure", "probe"]
    asked, probe = (asked for _, asked, _ in verbs.asked)
    assert (asked.np, asked.batch, asked.steps, asked.launches) == ((1, 4), (), 40, 1)
    assert asked.env == {"A": "1", "SCALESCOPE_SURVEY": "10"}
    assert asked.folder == str(tmp_path / "estimate" / "survey")
    assert (probe.backends, probe.slots, probe.device) == (("gloo",), 4, "cpu")
    place = tmp_path / "estimate"
    assert [each.copies for each in load(place / PROFILE, ModelProfile).crowds] == [4]
    assert [cell.np for cell in load(place / PREDICTION, Prediction).cells] == [1, 2, 4]
    done(tmp_path, "estimate", SCRIPT, engines=("ddp",), batches=())
    assert verbs.names() == ["measure", "probe", "continue"]
    everything = msgspec.structs.replace(SCRIPT, np=(), steps=50)
    done(tmp_path, "estimate", everything, engines=("ddp",), batches=())
    assert [cell.np for cell in load(place / PREDICTION, Prediction).cells] == [1, 2, 4]


@pytest.mark.usefixtures("leaves_surveys")
def test_in_an_allocation_a_node_is_probed_with_the_ranks_that_it_takes(tmp_path: Path, verbs: Verbs) -> None:
    with expecting(nodes=4, per_node=1):
        done(tmp_path, "estimate", msgspec.structs.replace(SCRIPT, per_node=1), engines=("ddp",), batches=())
        done(tmp_path / "model", "estimate", msgspec.structs.replace(OF_MODEL, per_node=1))
    probe, estimate = (asked for name, asked, _ in verbs.asked if name in ("probe", "estimate"))
    assert (probe.slots, estimate.per_node) == (1, 1)


def test_a_script_that_shards_its_model_gets_no_map_and_is_not_tuned(tmp_path: Path, verbs: Verbs) -> None:
    verbs.runs = [run("ddp", 1, 80, engine_seen="fsdp2"), run("ddp", 4, 80, engine_seen="fsdp2")]
    with pytest.raises(WorkFailed, match="no map: FSDP2 of a script cannot be modelled yet; measure and explain"):
        done(tmp_path, "estimate", SCRIPT, engines=("ddp",), batches=())
    assert not (tmp_path / "estimate" / PREDICTION).exists()
    assert verbs.names() == ["measure"], "nothing is probed for a map that cannot be"
    study = part_of(tmp_path, SCRIPT, engines=("ddp",), batches=())
    assert study.skip_reason("tune") == study.skip_reason("check") == "FSDP2 has no knobs that tune can change"


def test_a_script_that_was_not_surveyed_has_no_map(tmp_path: Path, verbs: Verbs) -> None:
    with pytest.raises(WorkFailed, match="no map: the script was not surveyed; it made 10 steps and the first 10 warm"):
        done(tmp_path, "estimate", msgspec.structs.replace(SCRIPT, steps=33), engines=("ddp",), batches=())
    assert verbs.asked[0][1].steps == 33
    verbs.runs = []
    with pytest.raises(WorkFailed, match="it made 0 steps"):
        done(tmp_path, "estimate", SCRIPT, engines=("ddp",), batches=())
