from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A gloo group of this process alone."""
    store = tmp_path_factory.mktemp("store") / "store"
    with pytest.MonkeyPatch.context() as around:
        around.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        yield
        dist.destroy_process_group()
