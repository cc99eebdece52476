"""Reads what the example scripts print, and tells whether they learned."""

import re

EPOCH = re.compile(
    r"Epoch (\d+): training (\d+\.\d\d)\(s\) - testing (\d+\.\d\d)\(s\) - loss (\d+\.\d{3}) - accuracy (\d+\.\d)%"
)


def epochs_of(output: str) -> list[tuple[int, float, float]]:
    """Number, loss and accuracy in percent of every epoch that rank 0 printed."""
    lines = output.splitlines()
    epochs = [match for line in lines if (match := EPOCH.fullmatch(line))]
    assert len(epochs) == sum("Epoch" in line for line in lines), output
    return [(int(match[1]), float(match[4]), float(match[5])) for match in epochs]


def assert_learned(epochs: list[tuple[int, float, float]]) -> None:
    assert [number for number, _, _ in epochs] == [1, 2, 3]
    assert epochs[-1][1] < epochs[0][1]
    assert epochs[-1][2] > 20, "ten classes: chance is 10 %"
