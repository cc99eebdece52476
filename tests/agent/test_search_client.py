"""A search inside real ranks: what directives do to a training, and what is told of it."""

import json
import signal
import time
from statistics import median

import pytest

from controlled import BEGINNING, Ranks, one, sample

TRAINING = (
    BEGINNING
    + """
model = wrapped()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)
forwards = steps = 0
switches = []
rebuild = type(model)._ddp_init_helper
def rebuilding(*arguments, **options):
    switches.append([forwards, steps])
    return rebuild(*arguments, **options)
type(model)._ddp_init_helper = rebuilding
for steps in range(70):
    for part in range(2):
        forwards += 1
        with model.no_sync() if part == 0 else torch.enable_grad():
            model(torch.randn(4 + 2 * part, 64)).square().mean().backward()
    if model.bucket_bytes_cap < 50_000:
        time.sleep(0.02)
    if steps == 61 and rank == 0:
        torch.save(plain.state_dict(), "checkpoint.pt"); time.sleep(0.5)
    optimizer.step()
    optimizer.zero_grad()
note("sha", sha())
note("switches", json.dumps(switches))
note("cap", model.bucket_bytes_cap)
note("forward", type(model).forward.__module__)
"""
)


def test_a_search_measures_settings_and_leaves_the_results_as_they_are(ranks: Ranks) -> None:
    view = {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": True}
    directives = [
        {"id": 0, "kind": "warmup", "steps": 5},
        {"id": 1, "kind": "survey", "steps": 3},
        sample(2, {}),
        sample(3, view),
        sample(4, {"bucket_cap_mb": 0.02}, steps=8, limit_ns=18_000_000),
        sample(5, {"bucket_cap_mb": 0.02}, limit_ns=10_000_000_000),
        sample(6, {}, steps=25),
        {"id": 7, "kind": "free", "values": view},
    ]
    lines = ranks.run(TRAINING, directives)
    tuned = {rank: ranks.noted("sha", rank) for rank in (0, 1)}

    hello, survey = one(lines, "hello"), one(lines, "survey")["survey"]
    assert hello["refused"] == ""
    assert (hello["world_size"], hello["backend"], hello["device"]) == (2, "gloo", "cpu")
    assert len(hello["hosts"]) == 2
    assert hello["current"]["bucket_cap_mb"] == 25
    assert hello["fixed"] == {"hierarchical_allreduce": "all ranks are on one host"}
    assert len(survey["gradients"]) == 26
    assert survey["samples"] == 10

    samples = {line["id"]: line for line in lines if line["kind"] == "sample"}
    assert list(samples) == [2, 3, 4, 5, 6]
    assert [len(each["step_ns"]) for each in samples.values()][:4] == [6, 6, 3, 6]
    assert [each["cut"] for each in samples.values()] == [False, False, True, False, False]
    assert all(set(each["samples"]) == {10} for each in samples.values())
    assert all(each["discarded"] == 2 and each["waited"] == 0 and not each["problem"] for each in samples.values())
    assert samples[2]["switch_ns"] == samples[5]["switch_ns"] == 0  # in force already
    assert samples[3]["switch_ns"] > 0
    assert median(samples[5]["step_ns"]) >= 20_000_000
    assert max(samples[6]["step_ns"]) < 500_000_000  # the step with the checkpoint has no time
    assert len(samples[6]["step_ns"]) < 25
    assert lines[-2:] == [{"kind": "applied", "id": 7}, {"kind": "end", "steps": 70}]

    switches = json.loads(ranks.noted("switches"))
    assert switches == json.loads(ranks.noted("switches", 1))
    first = 2 + 5 + 3 + 8 - 1
    assert [step for _, step in switches] == [first, first + 8, first + 8 + 5 + 8, first + 48]
    assert all(forwards == 2 * (step + 1) for forwards, step in switches)  # never between two micro-batches
    assert int(ranks.noted("cap")) == int(0.1 * 2**20)
    assert ranks.noted("forward") == "torch.nn.parallel.distributed"

    ranks.run(TRAINING, [], SCALESCOPE_TUNE="")
    assert set(tuned.values()) == {ranks.noted("sha")}


def test_steps_pass_until_the_next_directive_is_known(ranks: Ranks) -> None:
    script = TRAINING.replace("range(70)", "range(10**6)").replace(
        "optimizer.step()", "optimizer.step(); time.sleep(0.002)"
    )
    ranks.start(script, [{"id": 0, "kind": "warmup", "steps": 1}])
    while not ranks.lines():
        time.sleep(0.02)
    time.sleep(0.3)
    ranks.direct(sample(1, {"bucket_cap_mb": 0.1}))
    ranks.direct({"id": 2, "kind": "stop"})
    assert ranks.finish() == [0, 0]
    lines = ranks.lines()
    assert one(lines, "sample")["waited"] > 0
    assert one(lines, "end")["steps"] == 2 + 1 + one(lines, "sample")["waited"] + 8


def test_batches_of_different_sizes_are_counted_step_by_step(ranks: Ranks) -> None:
    script = TRAINING.replace("torch.randn(4 + 2 * part, 64)", "torch.randn(4 + steps % 5, 64)")
    lines = ranks.run(script, [{"id": 0, "kind": "warmup", "steps": 30}, sample(1, {}, 20)], ranks=1)
    sizes = [2 * (4 + step % 5) for step in range(2 + 30 + 2, 2 + 30 + 2 + 20)]
    assert one(lines, "sample")["samples"] == sizes
    assert one(lines, "end")["steps"] == 70


def test_a_killed_rank_leaves_the_samples_that_were_finished(ranks: Ranks) -> None:
    killing = f"if steps == 20 and rank == 1: os.kill(os.getpid(), {int(signal.SIGKILL)})\n    optimizer.step()"
    ranks.start(TRAINING.replace("optimizer.step()", killing), [sample(0, {}), sample(1, {"bucket_cap_mb": 0.1}, 20)])
    codes = ranks.finish()
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0
    assert one(ranks.lines(), "sample")["id"] == 0


def test_a_failed_switch_is_reported_and_the_next_setting_is_tried(ranks: Ranks) -> None:
    asked = [sample(0, {}), sample(1, {"hierarchical_allreduce": True}), sample(2, {"bucket_cap_mb": 0.1})]
    samples = [line for line in ranks.run(TRAINING, asked) if line["kind"] == "sample"]
    assert "no hierarchical allreduce: all ranks are on one host" in samples[1]["problem"]
    assert [len(line["step_ns"]) for line in samples] == [6, 0, 6]


def test_a_second_model_that_is_wrapped_later_ends_the_search_with_the_scripts_own_setting(ranks: Ranks) -> None:
    later = (
        "if steps == 20: other = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n    optimizer.step()"
    )
    script = TRAINING.replace("optimizer.step()", later)
    ranks.run(script, [sample(0, {"bucket_cap_mb": 0.1}), sample(1, {"bucket_cap_mb": 0.2}, 20)])
    ended = next(line for line in ranks.lines() if line["kind"] == "end")
    assert ended["problem"] == "the script wrapped another model in DistributedDataParallel"
    assert int(ranks.noted("cap")) == 25 * 2**20


def test_a_search_in_the_script_itself_takes_all_its_hooks_back(ranks: Ranks) -> None:
    script = (
        BEGINNING
        + """
from scalescope.agent.search_client import SearchClient
from scalescope.engines.ddp_training_live import DdpTraining
optimizers = sys.modules["torch.optim.optimizer"]
def hooks():
    return [len(optimizers._global_optimizer_post_hooks), type(model).forward.__module__]
class Search:
    directives, told = json.loads(os.environ["DIRECTIVES"]), []
    def ask(self): return self.directives.pop(0)
    def tell(self, line): self.told.append(line)
model = wrapped()
optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
def step(n):
    optimizer.zero_grad(); model(torch.randn(n, 64)).square().mean().backward(); optimizer.step()
before = hooks()
client = SearchClient(Search(), DdpTraining(model))
client.attach()
for number in range(30):
    step(4 + number % 2)
    if number == 12:
        model.eval(); model(torch.randn(4, 64)); time.sleep(0.3); model.train()
note("hooks", hooks() == before)
client.detach()
note("told", json.dumps(Search.told))
"""
    )
    directives = [sample(0, {}), sample(1, {"bucket_cap_mb": 0.1}), {"id": 2, "kind": "free", "values": {}}]
    ranks.run(script, [], ranks=1, SCALESCOPE_TUNE="", DIRECTIVES=json.dumps(directives))
    told = json.loads(ranks.noted("told"))
    assert [line["kind"] for line in told] == ["hello", "sample", "sample", "applied"]
    assert told[1]["samples"] == [4, 5, 4, 5, 4, 5]
    assert len(told[2]["step_ns"]) == 5  # without the one after the evaluation
    assert max(told[2]["step_ns"]) < 300_000_000
    assert ranks.noted("hooks") == "True"


def test_several_optimizers_make_one_step_and_no_switch_comes_between_them(ranks: Ranks) -> None:
    script = (
        BEGINNING
        + """
model = wrapped()
half = len(list(model.parameters())) // 2
parts = list(plain.parameters())[:half], list(plain.parameters())[half:]
optimizers = [torch.optim.SGD(part, lr=0.01) for part in parts]
made, switches = [], []
rebuild = type(model)._ddp_init_helper
def rebuilding(*arguments, **options):
    switches.append(len(made))
    return rebuild(*arguments, **options)
type(model)._ddp_init_helper = rebuilding
for _ in range(30):
    model(torch.randn(4, 64)).square().mean().backward()
    for number, optimizer in enumerate(optimizers):
        made.append(number)
        optimizer.step()
        optimizer.zero_grad()
note("switches", json.dumps(switches))
"""
    )
    directives = [sample(0, {"bucket_cap_mb": 0.1}), sample(1, {}), {"id": 2, "kind": "free", "values": {}}]
    lines = ranks.run(script, directives, ranks=1)
    switches = json.loads(ranks.noted("switches"))
    assert len(switches) == 2
    assert all(made % 2 == 0 for made in switches)
    assert [len(line["step_ns"]) for line in lines if line["kind"] == "sample"] == [6, 6]
    assert one(lines, "end")["steps"] == 30


LOOP = """
optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad(); model(torch.randn(4, 64)).square().mean().backward(); optimizer.step()
note("reducer", getattr(model, "_ddp_init_helper", model.forward).__module__)
"""
REFUSED = {
    "find_unused_parameters": ("model = wrapped(find_unused_parameters=True)", "ddp_find_unused_parameters=False"),
    "compiled wrapper": ("model = torch.compile(wrapped(), backend='eager')", "torch.compile"),
    "compiled model": ("plain = torch.compile(plain, backend='eager'); model = wrapped()", "compiled"),
    "two wrappers": ("model, other = wrapped(), torch.nn.parallel.DistributedDataParallel(layers[0])", "2 models"),
    "no wrapper": ("model = plain", "made 4 steps without DistributedDataParallel"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_a_training_that_cannot_be_tuned_gives_a_reason_and_trains_on(ranks: Ranks, kind: str) -> None:
    making, reason = REFUSED[kind]
    lines = ranks.run(BEGINNING + making + LOOP, [sample(0, {"bucket_cap_mb": 0.1})], ranks=1)
    assert reason in one(lines, "hello")["refused"]
    assert one(lines, "end")["steps"] == 4
    assert len(lines) == 2


def test_unused_parameters_are_no_reason_where_the_search_for_them_is_switched_off(ranks: Ranks) -> None:
    making, _ = REFUSED["find_unused_parameters"]
    off = json.dumps({"find_unused_parameters": False})
    lines = ranks.run(BEGINNING + making + LOOP, [sample(0, {"bucket_cap_mb": 0.1})], ranks=1, SCALESCOPE_KNOBS=off)
    assert one(lines, "hello")["refused"] == ""


def test_a_model_that_is_wrapped_but_never_trained_is_named(ranks: Ranks) -> None:
    lines = ranks.run(BEGINNING + "model = wrapped()", [], ranks=1)
    assert one(lines, "hello")["refused"].endswith("DistributedDataParallel, but only 0 steps were made")
