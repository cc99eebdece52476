"""docs/guides/models.md says what is true: its table, its file and its sessions."""

import doctest
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scalescope.workloads import BUILTINS
from scalescope.workloads.builtin import default_input, factory_of
from scalescope.workloads.inputs import parse_input

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "models.md"


def rows() -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line]
    return {row[0].strip("`"): row[1:] for row in cells if len(row) == 6 and row[0].startswith("`")}


def printed_count(name: str, **arguments: int) -> str:
    with torch.device("meta"):
        model = factory_of(name)(**arguments)
    assert isinstance(model, torch.nn.Module)
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


def test_the_table_lists_every_model() -> None:
    assert list(rows()) == list(BUILTINS)


@pytest.mark.parametrize("name", BUILTINS)
def test_a_row_of_the_table(name: str) -> None:
    parameters, default_input_text, at_224, arguments, _ = rows()[name]
    assert parameters == printed_count(name)
    assert at_224 == (printed_count(name, image_size=224) if BUILTINS[name].data == "images" else "")
    assert arguments.split(", ") == list(inspect.signature(factory_of(name)).parameters)
    defaults = {name: each.default for name, each in inspect.signature(factory_of(name)).parameters.items()}
    assert default_input(name, defaults) == parse_input(default_input_text.strip("`"))


def test_the_sessions_print_what_the_page_shows(user_code: Callable[[str], str], tmp_path: Path) -> None:
    assert user_code("")
    (net,) = re.findall(r"```python\n(# net.py\n.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "net.py").write_text(net)
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert attempted > 10
