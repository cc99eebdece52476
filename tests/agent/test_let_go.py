"""Whatever goes wrong in a search: all ranks let go, the knobs are as they were, and the training goes on."""

import json
import time

import pytest

from controlled import BEGINNING, Ranks, one, sample

DEFAULT = 25 * 2**20

TRAINING = (
    BEGINNING
    + """
model = wrapped()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(rank)
def step():
    optimizer.zero_grad()
    model(torch.randn(4, 64, generator=data)).square().mean().backward()
    optimizer.step()
BEFORE
for number in range(30):
    DURING
    step()
note("in force", model.bucket_bytes_cap)
AFTER
note("sha", sha())
note("cap", model.bucket_bytes_cap)
"""
)


def training(before: str = "", during: str = "pass", after: str = "") -> str:
    return TRAINING.replace("BEFORE", before).replace("DURING", during).replace("AFTER", after)


def plain(ranks: Ranks, script: str, **env: str) -> str:
    """Parameters of the same training without a search."""
    ranks.run(script, [], **{"SCALESCOPE_TUNE": "", **env})
    return ranks.noted("sha")


def assert_as_it_was(ranks: Ranks, script: str, **env: str) -> None:
    tuned = {(ranks.noted("sha", rank), ranks.noted("cap", rank)) for rank in (0, 1)}
    assert tuned == {(plain(ranks, script, **env), str(DEFAULT))}


def test_uneven_inputs_in_the_middle_of_a_search(ranks: Ranks) -> None:
    """A rank that joins early makes no more steps, and would never agree on anything again."""
    script = training(after="with model.join():\n    for _ in range(4 + 12 * rank): step()")
    trial = [sample(0, {"bucket_cap_mb": 0.02}), sample(1, {"bucket_cap_mb": 0.1}, steps=28)]
    lines = ranks.run(script, trial)
    assert int(ranks.noted("in force")) == int(0.1 * 2**20)
    ended = next(line for line in lines if line["kind"] == "end")
    assert "uneven inputs" in ended["problem"]
    assert "equally many batches" in ended["problem"]
    assert_as_it_was(ranks, script)


def test_uneven_inputs_from_the_first_step_on(ranks: Ranks) -> None:
    script = training(before="context = model.join(); context.__enter__()", after="context.__exit__(None, None, None)")
    script = script.replace("range(30)", "range(8 + 4 * rank)")
    lines = ranks.run(script, [sample(0, {"bucket_cap_mb": 0.02})])
    assert "uneven inputs" in one(lines, "hello")["refused"]
    assert_as_it_was(ranks, script)


FAILS_ONCE = """
rebuild, failures = type(model)._ddp_init_helper, []
def rebuilding(wrapper, *arguments, **options):
    if rank == 1 and wrapper.bucket_bytes_cap == int(0.1 * 2**20):
        failures.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")
    return rebuild(wrapper, *arguments, **options)
type(model)._ddp_init_helper = rebuilding
"""


def test_a_switch_that_fails_on_one_rank_is_undone_on_all(ranks: Ranks) -> None:
    script = training(before=FAILS_ONCE)
    view = {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": True}
    asked = [sample(0, {}), sample(1, view), sample(2, {"bucket_cap_mb": 0.02}), {"id": 3, "kind": "free"}]
    lines = ranks.run(script, asked)
    samples = {line["id"]: line for line in lines if line["kind"] == "sample"}
    assert "out of memory" in samples[1]["problem"]
    assert "out of memory" in samples[1]["fixed"]["gradient_as_bucket_view"]
    assert [len(each["step_ns"]) for each in samples.values()] == [6, 0, 6]
    assert_as_it_was(ranks, script)


def test_a_parameter_that_one_rank_thaws_on_the_way_ends_the_search_on_all(ranks: Ranks) -> None:
    script = training(during="plain[0].weight.requires_grad_(rank == 1 and number > 11)")
    script = script.replace("model = wrapped()", "plain[0].weight.requires_grad_(False); model = wrapped()")
    lines = ranks.run(script, [sample(at, {"bucket_cap_mb": cap}) for at, cap in enumerate((0.1, 0.02, 0.05))])
    ended = next(line for line in lines if line["kind"] == "end")
    assert "frozen or thawed" in ended["problem"]
    assert ranks.noted("cap") == ranks.noted("cap", 1) == str(DEFAULT)


FULL = """
reports = os.environ["SCALESCOPE_FOLDER"] + "/reports.jsonl"
def fill():
    if rank == 0: os.unlink(reports); os.symlink("/dev/full", reports)
def make_space():
    if rank == 0: os.unlink(reports)
"""


def test_a_disk_that_takes_no_reports_ends_the_search(ranks: Ranks) -> None:
    script = training(before=FULL, during="if number == 12 and os.environ['SCALESCOPE_TUNE']: fill()", after=AFTER_FULL)
    ranks.run(script, [sample(0, {}), sample(1, {"bucket_cap_mb": 0.1}), sample(2, {"bucket_cap_mb": 0.02})])
    assert "the search cannot be told what was measured: No space left on device" in ranks.errors
    assert_as_it_was(ranks, script)


BESIDE = """
from scalescope.agent.search_files import FileController
from scalescope.agent.search_client import SearchClient
from scalescope.engines.ddp_training_live import DdpTraining
alive = [True]
controller = FileController(os.environ["SCALESCOPE_FOLDER"], lambda: alive[0], patience_s=PATIENCE)
client = SearchClient(controller, DdpTraining(model))
client.attach()
"""


AFTER_FULL = "if os.environ['SCALESCOPE_TUNE']: make_space()"


@pytest.mark.parametrize(
    ("patience", "during", "why"),
    [
        ("1000", "alive[0] = number < 20", "the process of the search has ended"),
        ("0.05", "time.sleep(0.02)", "has not answered for"),
        ("1000", "", "cannot be read"),
    ],
    ids=["dead", "silent", "damaged"],
)
def test_a_search_that_is_gone(ranks: Ranks, patience: str, during: str, why: str) -> None:
    script = training(before=BESIDE.replace("PATIENCE", patience), during=during or "pass", after="client.detach()")
    ranks.start(script, [], SCALESCOPE_TUNE="")
    ranks.direct(sample(0, {"bucket_cap_mb": 0.1}))
    if not during:
        (ranks.folder / "directive-00001.json").write_text("{")
    assert ranks.finish() == [0, 0], ranks.errors
    ended = next(line for line in ranks.lines() if line["kind"] == "end")
    assert why in ended["problem"]
    assert one(ranks.lines(), "sample")["step_ns"]
    assert ranks.noted("cap") == ranks.noted("cap", 1) == str(DEFAULT)
    assert ranks.noted("sha") == ranks.noted("sha", 1)


def test_a_rank_that_leaves_is_not_waited_for(ranks: Ranks) -> None:
    script = (
        BEGINNING
        + """
from scalescope.engines.ddp_training_live import TorchControlGroup
group = TorchControlGroup(dist.group.WORLD)
said = [each["trouble"] for each in group.gather({"trouble": "x" * rank})]
if rank == 1:
    group.close(); del group
else:
    try: group.agree("")
    except Exception as problem: said.append(type(problem).__name__)
note("said", json.dumps(said))
dist.barrier()
"""
    )
    ranks.run(script, [], SCALESCOPE_TUNE="")
    assert json.loads(ranks.noted("said", 1)) == ["", "x"]
    assert json.loads(ranks.noted("said"))[2:] != []


WITHOUT_DDP = {
    "replicate": (
        "from torch.distributed._composable.replicate import replicate\nmodel = replicate(plain)",
        "wrap it in DistributedDataParallel instead",
    ),
    "own exchange": (
        "model = plain\ndef exchange():\n    for each in plain.parameters(): dist.all_reduce(each.grad)",
        "with its own exchange or none: wrap the model in DistributedDataParallel",
    ),
    "fsdp": (
        "from torch.distributed.fsdp import fully_shard\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        "model = fully_shard(plain, mesh=init_device_mesh('cpu', (size,)))",
        "sharded by FSDP",
    ),
}


@pytest.mark.parametrize("kind", list(WITHOUT_DDP))
def test_a_training_without_a_wrapper_is_refused_in_the_first_steps_and_trains_on(ranks: Ranks, kind: str) -> None:
    making, reason = WITHOUT_DDP[kind]
    script = (
        BEGINNING
        + "exchange = lambda: None\n"
        + making
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(rank)
for number in range(30):
    optimizer.zero_grad(); model(torch.randn(4, 64, generator=data)).square().mean().backward()
    exchange(); optimizer.step()
    if number == 7: note("by then", os.path.exists(os.environ["SCALESCOPE_FOLDER"] + "/reports.jsonl"))
final = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
note("sha", hashlib.sha1(b"".join(each.detach().numpy().tobytes() for each in final)).hexdigest())
"""
    )
    lines = ranks.run(script, [{"id": 0, "kind": "survey", "steps": 3}, sample(1, {"bucket_cap_mb": 0.1})])
    assert reason in one(lines, "hello")["refused"]
    assert ranks.noted("by then") == "True"
    tuned = ranks.noted("sha")
    assert tuned == plain(ranks, script)


def test_a_rank_that_trains_alone_before_the_others_is_not_waited_for(ranks: Ranks) -> None:
    """After these steps it believes that nothing will be wrapped; the others have to hear it."""
    alone = "optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)\n"
    alone += "for _ in range(9 if rank == 0 else 0): plain(torch.ones(2, 64)).sum().backward(); optimizer.step()\n"
    script = training().replace("model = wrapped()", alone + "model = wrapped()")
    script = script.replace("optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)\n", "")
    lines = ranks.run(script, [sample(0, {"bucket_cap_mb": 0.1})])
    assert [line["kind"] for line in lines] == ["hello", "end", "hello", "end"]
    assert lines[2]["refused"] == "the model was wrapped in DistributedDataParallel after the first steps"
    assert_as_it_was(ranks, script)


def test_a_search_begins_late(ranks: Ranks) -> None:
    """While nobody says what comes first, steps pass."""
    ranks.start(training().replace("range(30)", "range(150)"), [])
    while not ranks.lines():
        time.sleep(0.02)
    ranks.direct({"id": 0, "kind": "let_go", "why": "it was not meant"})
    assert ranks.finish() == [0, 0]
    assert next(line for line in ranks.lines() if line["kind"] == "end")["problem"] == "it was not meant"
    assert "not tuned: it was not meant; the training goes on as it was before" in ranks.errors


def test_a_rank_without_room_for_messages_is_surveyed_without_them(ranks: Ranks) -> None:
    script = (
        BEGINNING
        + """
from scalescope.agent.between import BetweenSteps
from scalescope.engines.ddp_training_live import TorchControlGroup
from scalescope.agent.survey import survey
model = wrapped()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
group, between = TorchControlGroup(dist.group.WORLD), BetweenSteps()
def work():
    for crowd in (0, 1 << 50):
        group.ranks_here += crowd * rank  # of what is free on its host, nothing is left to rank 1
        found = yield from survey(between, model, group, 2, None)
        note(f"survey {bool(crowd)}", json.dumps([len(found["gradients"]), list(found["costs"])]))
between.start(work(), 2)
for _ in range(8):
    optimizer.zero_grad(); model(torch.randn(4, 64)).square().mean().backward(); optimizer.step()
"""
    )
    ranks.run(script, [], SCALESCOPE_TUNE="")
    for rank in (0, 1):
        assert json.loads(ranks.noted("survey False", rank)) == [26, ["flat"]]
        assert json.loads(ranks.noted("survey True", rank)) == [26, []]
