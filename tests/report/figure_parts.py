"""What tests look up in a figure: its texts, its layers and their rows."""

from typing import Any


def with_data(chart: Any) -> Any:
    """The figure with its rows where they are used; altair collects them at the top."""
    spec = chart.to_dict()
    datasets = spec.pop("datasets", {})

    def placed(part: Any) -> Any:
        if isinstance(part, list):
            return [placed(each) for each in part]
        if not isinstance(part, dict):
            return part
        if part.get("name") in datasets:
            return {"values": datasets[part["name"]]}
        return {name: placed(value) for name, value in part.items()}

    return placed(spec)


def subtitle(figure: Any) -> list[str]:
    return [figure["title"]["text"], *figure["title"].get("subtitle", [])]


def layers(panel: Any, kind: str, **look: Any) -> list[Any]:
    """Layers of a panel whose mark is of this kind and looks so, with the data they inherit."""
    return [
        {"data": panel.get("data"), **layer}
        for layer in panel["layer"]
        if layer["mark"]["type"] == kind and look.items() <= layer["mark"].items()
    ]


def rows(layer: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = layer["data"]["values"]
    return found
