"""Losses that algorithms share. They import torch only when training calls them.

Each takes ``outputs`` and ``targets``, torch tensors of a batch, and returns a scalar tensor. ``at_deepest_output``
adapts them to models with several outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Batch, BatchLoss, ClientContext, Loss
from fedquilt_common.types import Examples

BatchFeatures = Callable[[Batch], Any]
"""Gives the features of a batch's samples by a fixed model: a float32 tensor of shape (samples, inputs)."""


def deepest_output(outputs: Any) -> Any:
    """Return the output of the deepest of several exits, or the only output (docs/tasks.md).

    Args:
        outputs: a tensor, or a list or tuple of tensors, the deepest exit's last.
    """
    return outputs[-1] if isinstance(outputs, list | tuple) else outputs


def at_deepest_output(loss: Loss) -> Loss:
    """Return a loss of a model's deepest or only output from one that takes a single tensor of outputs."""
    return lambda outputs, targets: loss(deepest_output(outputs), targets)


def cross_entropy(outputs: Any, targets: Any) -> Any:
    """Cross entropy, mean over the samples.

    Args:
        outputs: logits, float of shape (n, classes).
        targets: classes, int64 of shape (n,), or probabilities, float of shape (n, classes).
    """
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets)


def balanced_softmax(counts: NDArray[np.int64]) -> Loss:
    """Cross entropy of logits + log(counts): balanced softmax.

    Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.

    Args:
        counts: the client's samples of each class, int64 of shape (classes,). A class without samples is left out.
    """

    def loss(outputs: Any, targets: Any) -> Any:
        import torch

        prior = torch.from_numpy(counts).to(outputs.device, outputs.dtype).log()
        return cross_entropy(outputs + prior, targets)

    return loss


def mean_squared(outputs: Any, targets: Any) -> Any:
    """Mean squared error over samples and classes (FedAKD thesis, section 3.8); both of shape (n, classes)."""
    return ((outputs - targets) ** 2).mean()


def mean_absolute(outputs: Any, targets: Any) -> Any:
    """Mean absolute error over samples and classes (the code published with FedAKD); both of shape (n, classes)."""
    return (outputs - targets).abs().mean()


def divergence(outputs: Any, targets: Any, temperature: float = 1.0) -> Any:
    """Kullback-Leibler divergence of the outputs' softmax from the targets', mean over the samples.

    Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.

    Args:
        outputs: the student's logits, float of shape (n, classes).
        targets: soft labels, which are logits too, in the same shape.
        temperature: divides both logits, above 0; higher is smoother. The result is multiplied by its square, which
            keeps the size of the gradient (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015).
    """
    from torch.nn import functional

    if temperature != 1:
        return temperature**2 * divergence(outputs / temperature, targets / temperature)
    soft = functional.log_softmax(targets, dim=1)
    return functional.kl_div(functional.log_softmax(outputs, dim=1), soft, reduction="batchmean", log_target=True)


DISTILLATION: Final[dict[str, Loss]] = {"mse": mean_squared, "mae": mean_absolute, "kl": divergence}
"""Distillation losses by name: between a student's logits and soft labels, which are logits too."""


def look_up(features: NDArray[np.float32]) -> BatchFeatures:
    """Return a function that gives a batch its samples' features.

    Args:
        features: of each of the phase's samples, shape (n, inputs).
    """
    import torch

    return lambda batch: torch.from_numpy(features[batch.positions.cpu().numpy()]).to(batch.features.device)


def model_contrast(
    near: BatchFeatures, far: BatchFeatures, weight: float, temperature: float, average: Callable[[Any, Any], Any]
) -> BatchLoss:
    """Add MOON's contrastive loss: features become more similar to ``near`` than to ``far``, by cosine.

    Li et al., "Model-Contrastive Federated Learning", CVPR 2021, equation 3.

    Args:
        near: features of a batch's samples by the global model, shape (samples, inputs).
        far: those by the client's previous model.
        weight: factor of the contrastive loss, mu.
        temperature: divides the similarities.
        average: ``LearningTask.average``.
    """

    def loss(batch: Batch) -> Any:
        import torch
        from torch.nn import functional

        similar = [functional.cosine_similarity(batch.features, other(batch), dim=-1) for other in (near, far)]
        logits = torch.stack(similar, dim=-1) / temperature
        return batch.loss - weight * average(functional.log_softmax(logits, dim=-1)[..., 0], batch.targets)

    return loss


def prototype_distance(prototypes: NDArray[np.float32], known: NDArray[np.bool_], weight: float) -> BatchLoss:
    """Add the mean squared distance between features and the prototypes of their classes (FedProto, equation 7).

    Args:
        prototypes: shape (classes, inputs).
        known: which classes have a prototype, shape (classes,); samples of the others have no distance.
        weight: factor of the distance, lambda.
    """

    def loss(batch: Batch) -> Any:
        import torch

        labels, device = batch.targets.cpu().numpy(), batch.features.device
        wanted, counts = (torch.from_numpy(x[labels]).to(device) for x in (prototypes, known))
        return batch.loss + weight * (((batch.features - wanted) ** 2).mean(dim=1) * counts).mean()

    return loss


def mix_samples(own: Examples, public: Examples) -> Examples:
    """Put a client's own samples and public ones into one set, for ``mixed_distillation``.

    Args:
        own: n samples with classes, integers of shape (n,).
        public: m samples of the same shape with soft labels, float32 of shape (m, classes).

    Returns:
        n + m samples, with labels of shape (n + m, classes + 1): the soft label, or the own class one-hot; and last 1
        for an own sample, 0 for a public one.
    """
    classes = public.y.shape[1]
    labels = np.zeros((len(own) + len(public), classes + 1), np.float32)
    labels[np.arange(len(own)), own.y.astype(np.int64)] = 1
    labels[: len(own), classes] = 1
    labels[len(own) :, :classes] = public.y
    return Examples(np.concatenate([own.x, public.x]), labels)


def mixed_distillation(kd: Loss, gamma: float, own: int, public: int) -> Loss:
    """Return the mixed loss of distillation, for batches of ``mix_samples`` (FedAKD thesis, equation 3.10).

    Over an epoch, its mean is (1 - gamma) times the own samples' mean cross entropy plus gamma times the public
    samples' mean ``kd``.

    Args:
        kd: loss between logits and soft labels.
        gamma: weight of ``kd``, in [0, 1].
        own: number of the client's own samples in the set, at least 1.
        public: number of public samples in the set, at least 1.
    """
    shares = ((1 - gamma) * (own + public) / own, gamma * (own + public) / public)

    def loss(outputs: Any, targets: Any) -> Any:
        labels, is_own = targets[:, :-1], targets[:, -1] > 0
        parts = ((is_own, shares[0], cross_entropy), (~is_own, shares[1], kd))
        return sum(
            weight * place.to(outputs.dtype).mean() * measure(outputs[place], labels[place])
            for place, weight, measure in parts
            if place.any()
        )

    return loss


def class_counts(ctx: ClientContext) -> NDArray[np.int64]:
    """Count the client's training samples of each class.

    Returns:
        int64 of shape (classes,).
    """
    return np.bincount(ctx.data.y.astype(np.int64), minlength=ctx.classes)
