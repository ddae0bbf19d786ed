"""Static batch norm and the Scaler: what they do in training, in evaluation and while statistics are collected."""

from __future__ import annotations

import pytest
import torch
from tests.support.data import golden_vectors
from torch import Tensor, nn

from fedquilt_common.models.static_norm import Scaler, StaticBatchNorm, list_statistics

SHAPES = [(6, 3), (6, 3, 5), (6, 3, 4, 5)]


def batch(*shape: int, seed: int = 1) -> Tensor:
    return 2 + 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def usual(shape: tuple[int, ...]) -> nn.BatchNorm1d | nn.BatchNorm2d:
    """torch's batch norm with cumulative averages."""
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    return kind(shape[1], momentum=None)


@pytest.mark.parametrize("shape", SHAPES)
def test_training_normalises_by_the_batch_and_keeps_nothing(shape: tuple[int, ...]) -> None:
    norm, x = StaticBatchNorm(3), batch(*shape)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    torch.testing.assert_close(norm(x), usual(shape)(x))
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_without_statistics_uses_the_batch(shape: tuple[int, ...]) -> None:
    norm, x = StaticBatchNorm(3), batch(*shape)
    torch.testing.assert_close(norm.eval()(x), usual(shape)(x))


@pytest.mark.parametrize("shape", SHAPES)
def test_collected_statistics_are_those_of_all_samples_together(shape: tuple[int, ...]) -> None:
    """Whatever the sizes of the batches are, even a single sample."""
    norm = StaticBatchNorm(3)
    norm.start_collecting()
    batches = [batch(count, *shape[1:], seed=count) + count for count in (6, 1, 4)]
    for x in batches:
        norm(x)
    assert norm.num_batches_tracked.dtype == torch.int64
    assert int(norm.num_batches_tracked) == 3
    values = torch.cat(batches).transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean, values.mean(1))
    torch.testing.assert_close(norm.running_var, values.var(1, unbiased=False))


def test_evaluation_uses_what_was_collected_and_training_does_not() -> None:
    norm, x = StaticBatchNorm(3), batch(6, 3, 4, 5)
    norm.running_mean.fill_(1.0)
    norm.running_var.fill_(4.0)
    norm.num_batches_tracked.fill_(1)
    torch.testing.assert_close(norm.eval()(x), (x - 1) / (4 + norm.eps) ** 0.5)
    torch.testing.assert_close(norm.train()(x), usual((6, 3, 4, 5))(x))


def test_weight_and_bias() -> None:
    norm, x = StaticBatchNorm(3), batch(6, 3, 4, 5)
    plain = norm(x)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.0, -1.0, 5.0]))
    expected = plain * norm.weight.reshape(1, 3, 1, 1) + norm.bias.reshape(1, 3, 1, 1)
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (1, 3, 1, 1)])
@pytest.mark.parametrize("training", [True, False])
def test_a_single_value_is_normalised_to_the_bias(shape: tuple[int, ...], training: bool) -> None:
    norm = StaticBatchNorm(3).train(training)
    x = batch(*shape).requires_grad_()
    out = norm(x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros(shape))
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    norm.collecting = True
    norm(batch(*shape))
    assert torch.equal(norm.running_var, torch.zeros(3))


def test_gradients_are_those_of_batch_norm() -> None:
    gradients = []
    for norm in (StaticBatchNorm(3), usual((6, 3, 4, 5))):
        x = batch(6, 3, 4, 5).requires_grad_()
        norm(x).pow(3).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_collecting_has_no_gradients() -> None:
    norm = StaticBatchNorm(3)
    norm.collecting = True
    norm(batch(6, 3).requires_grad_())
    assert not norm.running_mean.requires_grad
    assert norm.running_mean.grad_fn is None


def test_collecting_is_off_at_first_and_no_part_of_the_state() -> None:
    norm = StaticBatchNorm(3)
    assert norm.collecting is False
    assert set(norm.state_dict()) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def test_a_norm_with_two_names_has_its_statistics_under_both() -> None:
    """``state_dict`` has both, and the last one that is loaded counts."""
    norm = StaticBatchNorm(3)
    twice = nn.ModuleDict({"a": norm, "b": nn.Sequential(norm)})
    kinds = ("running_mean", "running_var")
    assert list_statistics(twice) == tuple(f"{name}.{kind}" for name in ("a", "b.0") for kind in kinds)
    assert list_statistics(norm) == kinds


def test_scaler_divides_in_training_only() -> None:
    scaler, x = Scaler(0.25), torch.tensor([1.0, -2.0])
    assert scaler(x).tolist() == [4.0, -8.0]
    assert scaler.eval()(x).tolist() == [1.0, -2.0]
    assert torch.equal(Scaler()(x), x)
    assert not Scaler().state_dict()


def test_scaler_against_published_code() -> None:
    vector = golden_vectors("b_selective_aggregation.json")["scaler"]
    scaler, x = Scaler(vector["rate"]), torch.tensor(vector["x"])
    assert scaler(x).tolist() == vector["train"]
    assert scaler.eval()(x).tolist() == vector["eval"]
