import pytest
import torch
from torch import nn

from scalescope.errors import UsageError
from scalescope.workloads import BUILTINS, WorkloadSpec, check, load, spec_from_options
from scalescope.workloads.builtin import factory_of
from scalescope.workloads.inputs import parse_input
from scalescope.workloads.models import convolution

# The counts that torchvision and the papers' own releases give.
PUBLISHED = {
    "resnet18": ({"image_size": 224}, 11_689_512),
    "resnet50": ({"image_size": 224}, 25_557_032),
    "resnet101": ({"image_size": 224}, 44_549_160),
    "resnext50_32x4d": ({"image_size": 224}, 25_028_904),
    "resnext101_32x8d": ({"image_size": 224}, 88_791_336),
    "vgg19": ({"image_size": 224}, 143_667_240),
    "gpt": ({"layers": 12, "width": 768, "heads": 12, "sequence": 1024, "vocab": 50257}, 124_439_808),
}


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(name: str, **arguments: int) -> nn.Module:
    with torch.device("meta"):
        model = factory_of(name)(**arguments)
    assert isinstance(model, nn.Module)
    return model


@pytest.mark.parametrize("name", BUILTINS)
def test_every_model_trains_one_step_on_its_default_input(name: str) -> None:
    workload = load(WorkloadSpec(model=name))
    check(workload, 2)
    optimizer = workload.optimizer(workload.model.parameters())
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    loss = workload.loss(workload.model(*workload.batch(2)), workload.target(2))
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    changed = [not torch.equal(old, new) for old, new in zip(before, workload.model.parameters(), strict=True)]
    # A bias behind a dead ReLU may stay; most of the model must move.
    assert sum(changed) > 0.9 * len(changed)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    arguments, published = PUBLISHED[name]
    assert parameter_count(on_meta(name, **arguments)) == published


def test_large_images_get_the_imagenet_stem_and_head() -> None:
    workload = load(spec_from_options("resnet18", inputs=["3x224x224"]))
    check(workload, 1)
    assert workload.model(*workload.batch(1)).shape == (1, 1000)
    assert parameter_count(workload.model) == 11_689_512


@pytest.mark.parametrize(("image_size", "classes", "first_kernel"), [(32, 10, 3), (63, 10, 3), (64, 1000, 7)])
def test_image_size_decides_the_stem(image_size: int, classes: int, first_kernel: int) -> None:
    model = on_meta("resnet18", image_size=image_size)
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert isinstance(layers[0], nn.Conv2d)
    assert layers[0].kernel_size == (first_kernel, first_kernel)
    assert isinstance(layers[-1], nn.Linear)
    assert layers[-1].out_features == classes


@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_keeps_the_image_size_up_to_its_stride(kernel: int, stride: int) -> None:
    with torch.device("meta"):
        made = convolution(3, 8, kernel, stride)(torch.zeros(1, 3, 16, 16))
    assert made.shape == (1, 8, 16 // stride, 16 // stride)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("mlp", "3x8x8", {"features": 192}),
        ("cnn", "1x28x28", {"channels": 1, "image_size": 28}),
        ("vgg19", "3x32x96", {"channels": 3, "image_size": 32}),
        ("transformer", "int64:16:vocab=99", {"sequence": 16, "vocab": 99}),
        ("gpt", "int32:16:vocab=99", {"sequence": 16, "vocab": 99}),
    ],
)
def test_an_input_fits_the_model_to_itself(name: str, text: str, arguments: dict[str, int]) -> None:
    workload = load(spec_from_options(name, inputs=[text]))
    check(workload, 2)
    assert workload.batch(2)[0].shape == (2, *parse_input(text).shape)
    assert parameter_count(workload.model) == parameter_count(on_meta(name, **arguments))


def test_a_model_has_the_precision_of_its_input() -> None:
    workload = load(spec_from_options("cnn", inputs=["bfloat16:3x32x32"]))
    check(workload, 2)
    assert {parameter.dtype for parameter in workload.model.parameters()} == {torch.bfloat16}
    assert workload.batch(2)[0].dtype == torch.bfloat16


def test_gpt_sees_only_the_past_and_is_asked_for_the_next_token() -> None:
    workload = load(spec_from_options("gpt", model_args=["layers=2", "width=32", "sequence=8", "vocab=50"]))
    (tokens,) = workload.batch(1)
    target = workload.target(1)
    assert isinstance(target, torch.Tensor)
    assert torch.equal(tokens[:, 1:], target[:, :-1])
    for first in (workload.model.positions, workload.model.tokens.weight):
        assert first.detach().abs().max() < 0.15, "0.02 is their standard deviation"
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 50
    scores, other = workload.model(tokens), workload.model(changed)
    torch.testing.assert_close(scores[:, :5], other[:, :5])
    assert not torch.allclose(scores[:, 5:], other[:, 5:])


def test_targets_are_classes_of_the_model() -> None:
    target = load(spec_from_options("cnn", model_args=["classes=3"])).target(50)
    assert isinstance(target, torch.Tensor)
    assert set(target.tolist()) == {0, 1, 2}


def test_weights_and_data_follow_from_the_seed_alone() -> None:
    spec = WorkloadSpec(model="cnn")
    state = torch.random.get_rng_state()
    first, again, other = load(spec, seed=1), load(spec, seed=1), load(spec, seed=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.batch(4)[0], again.batch(4)[0])
    assert not torch.equal(first.batch(4)[0], other.batch(4)[0])
    weights = [next(workload.model.parameters()) for workload in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "resnet5",
            {},
            r"no built-in model 'resnet5' \(did you mean resnet50.*\?\): use one of mlp, .*file.py:factory",
        ),
        ("zebra", {}, r"no built-in model 'zebra': use one of mlp, cnn"),
        ("net.py", {}, r"net.py names no factory: write net.py:NAME"),
        ("mlp", {"model_args": ["widht=3"]}, r"mlp has no argument 'widht' \(did you mean width\?\): it has features"),
        ("mlp", {"model_args": ["width=wide"]}, r"mlp\(width='wide'\) fails: TypeError: .*; change --model-arg"),
        ("cnn", {"inputs": ["128"]}, r"cnn takes images, not --input 128: for example --input 3x224x224"),
        ("gpt", {"inputs": ["128"]}, r"gpt takes tokens, .*: for example --input int64:128:vocab=30000"),
        ("cnn", {"inputs": ["3x8x8", "3x8x8"]}, r"cnn takes one input, not 2: keep one --input"),
        (
            "cnn",
            {"inputs": ["3x64x64"], "model_args": ["image_size=32"]},
            r"--input 3x64x64 and --model-arg image_size=32 disagree: remove one of them",
        ),
        (
            "gpt",
            {"model_args": ["heads=3"]},
            r"gpt\(heads=3\) fails: ValueError: heads=3 must divide width=256; change",
        ),
        ("vgg19", {"inputs": ["1x28x28"]}, r"at least 32 pixels a side, not 28; change"),
    ],
)
def test_errors_say_what_to_type(model: str, options: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(spec_from_options(model, **options))
    assert "\n" not in str(caught.value)
