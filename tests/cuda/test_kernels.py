"""The Triton kernels against their twins in float64: on a GPU in bfloat16, elsewhere in Triton's interpreter."""

import pytest
import torch

from laser_rl.networks.torso import ImpalaDeep

pytest.importorskip("triton", reason="needs Triton")

from laser_rl.cuda import convolution, first, max_pool, pointwise
from laser_rl.cuda.convolution import taps, taps_back
from laser_rl.networks import impala
from tests.references import kernels as plain

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
CLOSE = 1e-2 if GPU else 2e-6  # ‖out − twin‖ / ‖twin‖
SHAPES = [(2, 12, 12, 16), (3, 7, 9, 32), (1, 11, 10, 48), (2, 6, 8, 128)]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


def double(x):
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def distance(one, other) -> float:
    return ((double(one) - double(other)).norm() / double(other).norm()).item()


def assert_near(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert distance(one, other) < CLOSE


@pytest.mark.parametrize("shape", SHAPES)
def test_pool_and_its_gradient(shape):
    torch.manual_seed(1)
    _, height, width, channels = shape
    x, bias = normal(*shape), torch.randn(channels, device=DEVICE)
    out, positive, index = max_pool.pool(x, bias, rectified=True)
    twin, twin_positive, twin_index = plain.pool(x.double(), bias.double(), rectified=True)
    assert torch.equal(index, twin_index)
    assert_near((out, positive), (twin, twin_positive))
    gradient = normal(*out.shape)
    back = plain.pool_gradient(gradient.double(), index, height, width)
    assert_near([max_pool.pool_gradient(gradient, index, height, width)], [back])
    alone = max_pool.pool(x, bias, rectified=False, choice=False)
    assert torch.equal(alone[0], out)
    assert alone[1:] == (None, None) == plain.pool(x, bias, rectified=False, choice=False)[1:]


def test_pool_of_equal_numbers_chooses_the_first():
    x = torch.zeros(1, 6, 6, 16, device=DEVICE, dtype=DTYPE)
    _, _, index = max_pool.pool(x, torch.zeros(16, device=DEVICE), rectified=False)
    assert torch.equal(index, plain.pool(x, torch.zeros(16, device=DEVICE), rectified=False)[2])


def test_pool_shows_what_is_not_finite():
    x = normal(1, 6, 6, 16)
    x[0, 2, 2, 3] = float("nan")
    out, positive, _ = max_pool.pool(x, torch.zeros(16, device=DEVICE), rectified=True)
    assert out[0, 1, 1, 3].isnan()
    assert positive[0, 1, 1, 3].isnan()
    assert out.isnan().sum() == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_pointwise(shape):
    torch.manual_seed(2)
    x, y, z, bias = normal(*shape), normal(*shape), normal(*shape), torch.randn(shape[-1], device=DEVICE)
    both = {"total": True, "rectified": True}
    assert_near(
        pointwise.add_bias_rectify(x, y, bias, **both),
        plain.add_bias_rectify(x.double(), y.double(), bias.double(), **both),
    )
    assert pointwise.add_bias_rectify(x, y, bias, total=True, rectified=False)[1] is None
    assert pointwise.add_bias_rectify(x, y, bias, total=False, rectified=True)[0] is None
    assert_near(pointwise.masked(x, y), plain.masked(x.double(), y.double()))
    assert_near(pointwise.masked(x, y, z), plain.masked(x.double(), y.double(), z.double()))
    assert_near([pointwise.channel_sums(x)], [plain.channel_sums(x.double())])


def test_masked_sums_over_more_rows_than_programs_take_at_once(monkeypatch):
    monkeypatch.setattr(pointwise, "PROGRAMS", 2)
    monkeypatch.setattr(pointwise, "NUMBERS", 64)
    x, y = normal(1, 5, 7, 16), normal(1, 5, 7, 16)
    assert_near(pointwise.masked(x, y), plain.masked(x.double(), y.double()))
    assert_near([pointwise.channel_sums(x)], [plain.channel_sums(x.double())])


@pytest.mark.parametrize("shape", [(2, 4, 12, 12, 16), (1, 4, 9, 11, 64), (2, 3, 8, 8, 32), (1, 4, 10, 7, 48)])
def test_first(shape, monkeypatch):
    n, planes, height, width, channels = shape
    torch.manual_seed(3)
    monkeypatch.setattr(first, "PROGRAMS", 2)
    pictures = torch.randint(0, 256, (n, planes, height, width), dtype=torch.uint8, device=DEVICE)
    weight, bias = torch.randn(channels, planes, 3, 3, device=DEVICE) / 6, torch.randn(channels, device=DEVICE)
    framed = first.frame(pictures)
    assert torch.equal(framed, plain.frame(pictures))
    out, positive, index = first.first(framed, weight, bias, 1 / 255, rectified=True, dtype=DTYPE)
    rounded = (weight / 255).to(DTYPE).double()
    twin, twin_positive, twin_index = plain.first(framed, rounded, bias.double(), 1.0, rectified=True)
    assert_near((out, positive), (twin, twin_positive))
    assert (index != twin_index).float().mean() < 1e-3  # only where two are equal but for rounding
    alone = first.first(framed, weight, bias, 1 / 255, rectified=True, choice=False, dtype=DTYPE)
    assert torch.equal(alone[0], out)
    assert torch.equal(alone[1], positive)
    assert alone[2] is plain.first(framed, rounded, bias.double(), 1.0, rectified=True, choice=False)[2] is None
    gradient = normal(*out.shape)
    back = plain.first_gradient(framed, gradient.double(), index, 1 / 255)
    assert_near([first.first_gradient(framed, gradient, index, 1 / 255)], [back])


def test_first_shows_weights_that_are_not_finite():
    framed = first.frame(torch.randint(0, 256, (1, 4, 8, 8), dtype=torch.uint8, device=DEVICE))
    weight = torch.full((16, 4, 3, 3), float("nan"), device=DEVICE)
    out, _, _ = first.first(framed, weight, torch.zeros(16, device=DEVICE), 1 / 255, rectified=False, dtype=DTYPE)
    assert out.isnan().all()


def test_too_many_pictures_are_refused():
    pictures = torch.empty(1, dtype=torch.uint8).expand(80_000, 4, 84, 84)
    with pytest.raises(ValueError, match="use fewer"):
        first.frame(pictures)


VARIANTS = [(), ("bias", "rectify", "rectified"), ("bias", "residual"), ("positive",), ("positive", "residual")]


@pytest.mark.parametrize("channels", [(16, 16), (16, 32), (32, 16), (32, 32)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_convolve(channels, variant):
    inputs, outputs = channels
    torch.manual_seed(4)
    x, weight = normal(2, 7, 9, inputs), taps(normal(outputs, inputs, 3, 3) / 12)
    given = {
        "bias": torch.randn(outputs, device=DEVICE),
        "rectify": True,
        "rectified": True,
        "positive": normal(2, 7, 9, outputs),
        "residual": normal(2, 7, 9, outputs),
    }
    chosen = {name: given[name] for name in variant}
    twin = plain.convolve(x.double(), weight.double(), **{name: double(value) for name, value in chosen.items()})
    assert_near([convolution.convolve(x, weight, **chosen)], [twin])


@pytest.mark.parametrize("channels", [(16, 16), (16, 32), (32, 32)])
@pytest.mark.parametrize("rectify", [False, True])
def test_weight_gradient(channels, rectify, monkeypatch):
    monkeypatch.setattr(convolution, "PROGRAMS", 2)
    inputs, outputs = channels
    torch.manual_seed(5)
    x, gradient = normal(5, 7, 9, inputs), normal(5, 7, 9, outputs)
    twin = plain.weight_gradient(x.double(), gradient.double(), rectify=rectify)
    assert_near(convolution.weight_gradient(x, gradient, rectify=rectify), twin)


def test_gradient_of_the_input_is_a_convolution_too():
    weight, gradient = normal(32, 16, 3, 3) / 12, normal(2, 7, 9, 32)
    twin = plain.convolve(gradient.double(), taps_back(weight).double())
    assert_near([convolution.convolve(gradient, taps_back(weight))], [twin])


@pytest.mark.parametrize(("width", "size"), [(1, 20), (4, 12), (3, 10)])
def test_sections_are_the_network_and_its_gradients(width, size, monkeypatch):
    """All kernels together, against autograd through the plain modules; 3 is neither narrow nor a power of 2."""
    monkeypatch.setattr(impala, "DTYPE", DTYPE)
    torch.manual_seed(6)
    torso = ImpalaDeep((4, size, size), width).to(DEVICE)
    pictures = torch.randint(0, 256, (3, 4, size, size), dtype=torch.uint8, device=DEVICE)
    parameters = list(torso.sections.parameters())
    exact = ImpalaDeep((4, size, size), width).to(DEVICE).double()
    exact.load_state_dict(torso.state_dict())
    expected = torch.relu(exact.sections(pictures.double() / 255))
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(exact.sections.parameters()), gradient)
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=GPU):
        usual = torch.relu(torso.sections(pictures.float() / 255))
    usually = torch.autograd.grad(usual, parameters, gradient.to(usual.dtype))
    out = impala.Sections.apply(pictures, 1 / 255, *parameters).permute(0, 3, 1, 2)
    found = torch.autograd.grad(out, parameters, gradient.to(DTYPE))
    for one, rounded, other in zip((out, *found), (usual, *usually), (expected, *wanted), strict=True):
        assert one.shape == other.shape
        # bfloat16 flips which of two near values is the largest, and signs near 0: so much, 4 to 18 per cent of a gradient, is lost by
        # torch's own autocast on these pictures, too. Ours may not lose twice as much.
        assert distance(one, other) < 5 * CLOSE + (2 * distance(rounded, other) if GPU else 0)


@pytest.mark.parametrize("width", [1, 4])
def test_acting_is_the_same_function_and_keeps_nothing(width, monkeypatch):
    monkeypatch.setattr(impala, "DTYPE", DTYPE)
    torso = ImpalaDeep((4, 12, 12), width).to(DEVICE)
    pictures = torch.randint(0, 256, (3, 4, 12, 12), dtype=torch.uint8, device=DEVICE)
    parameters = list(torso.sections.parameters())
    learned = impala.Sections.apply(pictures, 1 / 255, *parameters)
    chosen = []
    for name in ("first", "pool"):
        kernel = getattr(impala, name)
        monkeypatch.setattr(impala, name, lambda *a, kernel=kernel, **k: chosen.append(kernel(*a, **k)) or chosen[-1])
    with torch.no_grad():
        acted = impala.act(pictures, 1 / 255, *parameters)
    assert [index for *_, index in chosen] == [None] * 3
    assert learned.grad_fn is not None
    assert torch.equal(acted, learned)
    monkeypatch.setattr(impala, "Sections", None)  # who needs no gradient does not go through it
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=GPU):
        assert torso.from_bytes(pictures, 1 / 255).shape == (3, 256)


@pytest.mark.slow
def test_kernels_that_do_not_run_are_not_used(monkeypatch, caplog):
    torso = ImpalaDeep((4, 20, 20), 1).to(DEVICE)
    parameters = list(torso.sections.parameters())
    monkeypatch.setattr(impala, "DTYPE", DTYPE)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: torch.Event(DEVICE))
    assert impala.kernels_work(parameters, (4, 20, 20))

    def no_compiler(*_):
        raise RuntimeError("no C compiler\nsecond line")

    monkeypatch.setattr(impala, "frame", no_compiler)
    assert not impala.kernels_work(parameters, (4, 20, 20))
    assert "no C compiler" in caplog.text
    assert "second line" not in caplog.text


def test_pictures_on_a_cpu_go_through_torch():
    torso = ImpalaDeep((4, 20, 20), 1)
    assert not torso.reads_bytes(torch.zeros(1, 4, 20, 20, dtype=torch.uint8))
