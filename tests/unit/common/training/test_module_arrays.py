"""The numbers of a torch module, as arrays and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedquilt_common.training.module_arrays import load_arrays, to_arrays


def test_a_buffer_that_numpy_has_no_type_for_travels_as_fp32() -> None:
    module = nn.Linear(2, 1)
    module.register_buffer("scale", torch.tensor([0.5, 1.0], dtype=torch.bfloat16))
    arrays = to_arrays(module)
    assert (arrays["scale"].dtype.name, arrays["scale"].tolist()) == ("float32", [0.5, 1.0])
    load_arrays(module, {**arrays, "scale": np.array([2.0, 1 + 2**-9], np.float32)})
    assert module.get_buffer("scale").dtype == torch.bfloat16
    assert module.get_buffer("scale").tolist() == [2.0, 1.0]  # bf16 has 8 bits of precision
