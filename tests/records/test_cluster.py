"""What a cluster takes and sends, and which of them cannot be."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.records.cluster import Among, Cluster, Costs, Link, Overlap, gpu_model
from scalescope.records.cluster_file import load_cluster, write_cluster

CLUSTER = Cluster(
    nodes=3,
    slots_per_node=8,
    cores_per_node=64,
    inside=Link(bytes_per_s=100.0, latency_s=0.0),
    among=(Among(ranks=4, bytes_per_s=40.0), Among(ranks=2, bytes_per_s=20.0)),
)
HEAD = "nodes = 1\nslots_per_node = 4\ncores_per_node = 4\n"
COSTS = {"backend": "gloo", "operation": "allreduce", "ranks": 2, "nodes": 2, "sizes_bytes": [1, 2]}
SECONDS = {"seconds": [1.0, 1e299], "cpu_seconds": [0.0, 1.0], "error": 0.0}


@pytest.mark.parametrize(("count", "rate"), [(1, 20.0), (2, 20.0), (3, 40.0), (4, 40.0), (5, 100.0), (8, 100.0)])
def test_fewer_ranks_of_a_node_send_over_the_links_that_join_them(count: int, rate: float) -> None:
    assert CLUSTER.inside_bytes_per_s(count) == rate
    turned = msgspec.structs.replace(CLUSTER, among=CLUSTER.among[::-1])
    assert turned.inside_bytes_per_s(count) == rate


def test_links_that_are_not_described_have_no_rate() -> None:
    bare = msgspec.structs.replace(CLUSTER, inside=None)
    assert (bare.inside_bytes_per_s(2), bare.inside_bytes_per_s(5)) == (20.0, None)
    assert CLUSTER.slots == 24


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H200", "H200"),
        ("Tesla V100-PCIE-16GB", "V100"),
        ("NVIDIA RTX A1000", None),
        ("GH1000", None),
        ("", None),
    ],
)
def test_a_gpus_name_says_its_model(name: str, model: str | None) -> None:
    assert gpu_model(name) == model


def test_costs_at_the_edge_of_what_can_be_are_taken() -> None:
    assert msgspec.convert(COSTS | SECONDS, Costs).nodes == 2
    assert msgspec.convert(COSTS | SECONDS | {"error": 0}, Costs).error == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": 0},
        {"nodes": 3},
        {"sizes_bytes": [2, 1]},
        {"sizes_bytes": [0, 1]},
        {"sizes_bytes": [1, 2, 3]},
        {"seconds": [0.0, 1.0]},
        {"seconds": [1.0, 1e300]},
        {"seconds": [1.0]},
        {"cpu_seconds": [-1e-9, 1.0]},
        {"cpu_seconds": [0.0, 1e300]},
        {"cpu_seconds": [1.0]},
        {"error": -1e-9},
        {"backend": "gloom"},
        {"backend": "my-gloo"},
    ],
    ids=str,
)
def test_costs_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(COSTS | SECONDS | wrong, Costs)


def test_a_new_cluster_has_the_current_format_and_different_costs() -> None:
    one = msgspec.convert(COSTS | SECONDS, Costs)
    others = [msgspec.structs.replace(one, **{name: value}) for name, value in (("ranks", 3), ("nodes", 1))]
    made = msgspec.structs.replace(CLUSTER, costs=(one, *others))
    assert (made.version, len(made.costs)) == (1, 3)
    with pytest.raises(ValueError, match="gloo allreduce of 3 ranks on 2 nodes is measured twice"):
        msgspec.structs.replace(CLUSTER, costs=(one, others[0], others[0]))


def complaint(folder: Path, text: str) -> str:
    path = folder / "cluster.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_cluster(path)
    return str(caught.value).removeprefix(f"{path}: ")


AMONG = "[[among]]\nranks = 2\nbandwidth = "


def test_a_mistake_in_one_of_several_tables_names_its_place(tmp_path: Path) -> None:
    second = complaint(tmp_path, HEAD + AMONG + "1\n" + AMONG + "0\n")
    assert second == "among[1].bandwidth: Expected float > 0.0: correct it"
    assert complaint(tmp_path, HEAD + AMONG + "1\nrank = 3\n").startswith('among: there is no key "rank"')
    assert complaint(tmp_path, HEAD + AMONG + '"2 m"\n').endswith('such as "200 Gbit/s", not "2 m"')
    assert complaint(tmp_path, "among = [3]\n" + HEAD).startswith("among[0]: ")


def test_a_table_that_is_alone_is_named_without_a_number(tmp_path: Path) -> None:
    assert complaint(tmp_path, "among = 3\n" + HEAD) == "among: Expected array, got int: correct it"
    assert complaint(tmp_path, "between = [1]\n" + HEAD) == "between: Expected object | null, got array: correct it"
    assert complaint(tmp_path, 'gpu = "K80"\n' + HEAD) == "gpu: Invalid enum value 'K80': correct it"


def test_a_long_value_is_cut_where_it_is_shown(tmp_path: Path) -> None:
    said = complaint(tmp_path, f'gpu = "{"x" * 500}"\n' + HEAD)
    assert said.startswith("gpu: Invalid enum value 'xxx")
    assert len(said) < 230


def test_empty_tables_are_not_written_and_an_empty_name_is(tmp_path: Path) -> None:
    write_cluster(Cluster(nodes=1, slots_per_node=1, cores_per_node=1), tmp_path / "c.toml")
    text = (tmp_path / "c.toml").read_text()
    assert text.startswith('kind = "cluster"\nversion = 1\nname = ""\nnodes = 1\n')
    assert not any(name in text for name in ("measured", "overlap", "among", "inside", "between", "gpu ="))


def test_an_overlap_slows_nothing_down_while_nothing_is_sent_unless_it_says_so() -> None:
    overlap = Overlap(backend="gloo", ranks=2, nodes=1, compute=1.5, communication=2.0)
    assert (overlap.idle, overlap.idle_error) == (1.0, 0.0)
