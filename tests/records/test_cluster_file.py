from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.cluster import BACKENDS, Among, Cluster, Costs, Link, Overlap
from scalescope.records.cluster_file import load_cluster, write_cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
COUNTS = st.integers(1, 100_000)
POSITIVE = st.floats(1e-12, 1e15)
LINKS = st.none() | st.builds(Link, bytes_per_s=POSITIVE, latency_s=st.floats(0, 1e3))
OVERLAPS = st.builds(
    Overlap, backend=st.sampled_from(BACKENDS), ranks=COUNTS, nodes=COUNTS, compute=POSITIVE, communication=POSITIVE
)
SMALL = """
nodes = 8
slots_per_node = 4
cores_per_node = 64
"""
MEASURED = """
[[measured]]
backend = "gloo"
operation = "allreduce"
ranks = 2
nodes = 1
sizes_bytes = [4, 1024, 65536]
seconds = [1e-4, 2e-4, 1e-3]
cpu_seconds = [0, 1e-4, 1e-3]
error = 0.02
"""
LINK = '[inside]\nbandwidth = "250 GB/s"\nlatency = "5 us"\n'


@st.composite
def costs(draw: st.DrawFn, ranks: int) -> Costs:
    sizes = sorted(draw(st.sets(st.integers(1, 2**40), min_size=1, max_size=6)))
    seconds = tuple(draw(POSITIVE) for _ in sizes)
    return Costs(
        backend=draw(st.sampled_from(BACKENDS)),
        operation=draw(st.sampled_from(("allreduce", "broadcast"))),
        ranks=ranks,
        nodes=draw(st.integers(1, ranks)),
        sizes_bytes=tuple(sizes),
        seconds=seconds,
        cpu_seconds=tuple(draw(st.just(0.0) | POSITIVE) for _ in sizes),
        error=draw(st.floats(0, 1)),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    return Cluster(
        name=draw(st.text()),
        nodes=draw(COUNTS),
        slots_per_node=draw(COUNTS),
        cores_per_node=draw(COUNTS),
        device=draw(st.sampled_from(("cpu", "gpu"))),
        gpu=draw(st.sampled_from((None, "V100", "H200"))),
        inside=draw(LINKS),
        among=tuple(draw(st.lists(st.builds(Among, ranks=COUNTS, bytes_per_s=POSITIVE), max_size=2))),
        between=draw(LINKS),
        algorithm=draw(st.sampled_from(("auto", "ring", "tree", "hierarchical"))),
        copy_s_per_byte=draw(st.floats(0, 1)),
        costs=tuple(draw(costs(ranks)) for ranks in range(2, 2 + draw(st.integers(0, 3)))),
        overlaps=tuple(draw(st.lists(OVERLAPS, max_size=2))),
        threads_per_rank=draw(COUNTS),
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_cluster(written(folder, text))
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder / "cluster.toml") in message
    return message


@settings(max_examples=60)
@given(clusters())
def test_a_cluster_comes_back_as_it_was(cluster: Cluster) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "deep" / "cluster.toml"
        write_cluster(cluster, path)
        assert load_cluster(path) == cluster


def test_a_link_that_is_not_there_is_not_written(tmp_path: Path) -> None:
    link = Link(bytes_per_s=25e9, latency_s=5e-6)
    cluster = Cluster(nodes=2, slots_per_node=1, cores_per_node=4, between=link, name='say "hi"\\\x7f')
    write_cluster(cluster, tmp_path / "cluster.toml")
    text = (tmp_path / "cluster.toml").read_text()
    assert "[between]\nbandwidth = 25000000000.0\n" in text
    assert "[inside]" not in text
    assert load_cluster(tmp_path / "cluster.toml") == cluster


def test_a_file_written_by_hand_needs_three_numbers(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path, SMALL))
    assert cluster == Cluster(nodes=8, slots_per_node=4, cores_per_node=64)
    assert (cluster.slots, cluster.version) == (32, 1)


@pytest.mark.parametrize(
    ("bandwidth", "bytes_per_s"),
    [
        ('"250 GB/s"', 250e9),
        ('"200 Gbit/s"', 25e9),
        ('"1000Mbit/s"', 125e6),
        ('"1.5 MB/s"', 1.5e6),
        ('"8 Kbit/s"', 1e3),
        ('"2 KB/s"', 2e3),
        ('"7 B/s"', 7.0),
        ("125000000", 125e6),
        ("1.25e9", 1.25e9),
    ],
)
def test_bandwidths_are_read_in_every_unit(tmp_path: Path, bandwidth: str, bytes_per_s: float) -> None:
    text = SMALL + f"[between]\nbandwidth = {bandwidth}\nlatency = 0.001\n"
    assert load_cluster(written(tmp_path, text)).between == Link(bytes_per_s=bytes_per_s, latency_s=1e-3)


@pytest.mark.parametrize(
    ("latency", "seconds"), [('"5 us"', 5e-6), ('"1.5 ms"', 1.5e-3), ('"900 ns"', 9e-7), ('"0 s"', 0.0), ("0", 0.0)]
)
def test_latencies_are_read_in_every_unit(tmp_path: Path, latency: str, seconds: float) -> None:
    text = SMALL + f"[inside]\nbandwidth = 1\nlatency = {latency}\n"
    assert load_cluster(written(tmp_path, text)).inside == Link(bytes_per_s=1.0, latency_s=seconds)


def test_measured_costs_and_overlap_are_read(tmp_path: Path) -> None:
    overlap = '[[overlap]]\nbackend = "gloo"\nranks = 2\nnodes = 1\ncompute = 1.4\ncommunication = 2\n'
    cluster = load_cluster(written(tmp_path, SMALL + overlap + MEASURED))
    assert cluster.overlaps == (Overlap(backend="gloo", ranks=2, nodes=1, compute=1.4, communication=2.0),)
    assert cluster.costs[0].sizes_bytes == (4, 1024, 65536)
    assert cluster.costs[0].cpu_seconds == (0.0, 1e-4, 1e-3)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"four"', "true", "nan", "inf", "[8]"])
@pytest.mark.parametrize("key", ["nodes", "slots_per_node", "cores_per_node"])
def test_an_impossible_count_is_named(tmp_path: Path, key: str, value: str) -> None:
    lines = [f"{key} = {value}" if line.startswith(f"{key} ") else line for line in SMALL.splitlines()]
    message = complaint(tmp_path, "\n".join(lines))
    assert f"cluster.toml: {key}: Expected int" in message


@pytest.mark.parametrize("key", ["nodes", "slots_per_node", "cores_per_node"])
def test_a_missing_count_is_named(tmp_path: Path, key: str) -> None:
    text = "\n".join(line for line in SMALL.splitlines() if not line.startswith(f"{key} "))
    assert f"cluster.toml: Object missing required field {key}: correct it" in complaint(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node = 3\n" + SMALL, 'no key "node" (did you mean nodes'),
        ("slots = 3\n" + SMALL, 'no key "slots" (did you mean slots_per_node'),
        ("zzz = 3\n" + SMALL, 'no key "zzz": use version, name, nodes'),
        (
            SMALL + LINK.replace("bandwidth", "bandwith"),
            'inside: there is no key "bandwith" (did you mean bandwidth',
        ),
        ("memory = inf\n" + SMALL, "memory: Expected int, got float"),
        (SMALL + LINK.replace("250", "9" * 400), "bandwidth: expected a number and a unit"),
        (SMALL + LINK.replace("250 GB/s", "fast"), 'such as "200 Gbit/s", not "fast"'),
        (SMALL + LINK.replace("250 GB/s", "250"), "bandwidth: expected a number and a unit (B/s,"),
        (SMALL + LINK.replace("250 GB/s", "250 Gb/s"), "B/s, KB/s, MB/s, GB/s, Kbit/s, Mbit/s, Gbit/s"),
        (SMALL + LINK.replace("250 GB/s", "0 GB/s"), "inside.bandwidth: Expected float > 0.0"),
        (SMALL + LINK.replace('"250 GB/s"', "nan"), "inside.bandwidth: Expected float > 0.0"),
        (SMALL + LINK.replace('"250 GB/s"', "inf"), "inside.bandwidth: Expected float < 1e+300"),
        (SMALL + LINK.replace('"250 GB/s"', "true"), "inside.bandwidth: Expected float, got bool"),
        (SMALL + LINK.replace("5 us", "-5 us"), 'such as "5 us", not "-5 us"'),
        (SMALL + LINK.replace('"5 us"', "-5e-6"), "inside.latency: Expected float >= 0.0"),
        (SMALL + LINK.replace('"5 us"', "nan"), "inside.latency: Expected float >= 0.0"),
        (SMALL + '[between]\nbandwidth = "1 GB/s"\n', "between: Object missing required field latency"),
        ("inside = 3\n" + SMALL, "inside: Expected object | null, got int"),
        ("measured = 3\n" + SMALL, "measured: Expected array, got int"),
        (SMALL + "[overlap]\ncompute = 1\n", "overlap: Expected array, got object"),
        ("name = 3\n" + SMALL, "name: Expected str, got int"),
        ('device = "tpu"\n' + SMALL, "device: Invalid enum value 'tpu'"),
        ('algorithm = "star"\n' + SMALL, "algorithm: Invalid enum value 'star'"),
        ("copy_s_per_byte = -1\n" + SMALL, "copy_s_per_byte: Expected float >= 0.0"),
        ("copy_s_per_byte = nan\n" + SMALL, "copy_s_per_byte: Expected float >= 0.0"),
        ('kind = "run"\n' + SMALL, "holds a 'run', not a 'cluster'"),
        ("version = 2\n" + SMALL, "has format 2 and this scalescope reads format 1: pip install --upgrade"),
        ("version = 0\n" + SMALL, "has format 0 and this scalescope reads format 1: make it anew"),
        (SMALL + "nodes = 8\n", "is not TOML"),
        ("{}", "is not TOML"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in complaint(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"gloo"', '"goo"', "backend: Expected str matching regex '^(gloo|nccl|"),
        (
            '"allreduce"',
            '"reduce"',
            "operation: Invalid enum value 'reduce'",
        ),
        ("ranks = 2", "ranks = 0", "ranks: Expected int >= 1"),
        ("nodes = 1", "nodes = 3", "nodes must be at most ranks"),
        ("[4, 1024, 65536]", "[1024, 4, 65536]", "measured[0]: sizes_bytes must ascend"),
        ("[4, 1024, 65536]", "[4, 4, 65536]", "sizes_bytes must ascend"),
        ("[4, 1024, 65536]", "[0, 4, 65536]", "measured[0].sizes_bytes[0]: Expected int >= 1"),
        ("[4, 1024, 65536]", "[]", "sizes_bytes: Expected array of length >= 1"),
        ("[4, 1024, 65536]", "4", "sizes_bytes: Expected array, got int"),
        ("[1e-4, 2e-4, 1e-3]", "[1e-4]", "seconds and cpu_seconds must hold one number for each of sizes_bytes"),
        ("[0, 1e-4, 1e-3]", "[0, 1]", "cpu_seconds must hold one number for each of sizes_bytes"),
        ("[1e-4, 2e-4, 1e-3]", "[1e-4, nan, 1]", "seconds[1]: Expected float > 0.0"),
        ("[1e-4, 2e-4, 1e-3]", "[1e-4, -1.0, 1]", "seconds[1]: Expected float > 0.0"),
        ("error = 0.02", "error = inf", "error: Expected float < 1e+300"),
        ("error = 0.02", "", "measured[0]: Object missing required field error"),
    ],
)
def test_a_mistake_in_a_measured_table_is_one_clear_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    message = complaint(tmp_path, SMALL + MEASURED.replace(old, new))
    assert expected in message
    assert "cluster.toml: measured[0]" in message


def test_a_kind_of_cost_stands_there_once(tmp_path: Path) -> None:
    message = complaint(tmp_path, SMALL + 2 * MEASURED)
    assert "gloo allreduce of 2 ranks on 1 nodes is measured twice: keep one" in message


def test_measured_numbers_stand_in_one_line(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path, SMALL + MEASURED))
    write_cluster(msgspec.structs.replace(cluster, name="[\n1,\n]"), tmp_path / "again.toml")
    text = (tmp_path / "again.toml").read_text()
    assert "sizes_bytes = [4, 1024, 65536]\n" in text
    assert load_cluster(tmp_path / "again.toml").name == "[\n1,\n]"


def test_an_unreadable_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.toml: No such file"):
        load_cluster(tmp_path / "none.toml")
    with pytest.raises(UsageError, match=r"Is a directory: name a cluster\.toml, which scalescope probe"):
        load_cluster(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not TOML"):
        load_cluster(tmp_path / "binary.toml")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    write_cluster(Cluster(nodes=1, slots_per_node=1, cores_per_node=1), path)
    (tmp_path / "cluster.toml.partial").mkdir()
    with pytest.raises(WorkFailed, match="cannot write"):
        write_cluster(Cluster(nodes=2, slots_per_node=1, cores_per_node=1), path)
    assert load_cluster(path).nodes == 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_can_be_read(path: Path) -> None:
    assert load_cluster(path).slots > 1
