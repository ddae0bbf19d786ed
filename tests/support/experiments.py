"""What an experiment file that is not valid is refused with."""

from __future__ import annotations

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment_file import parse_experiment


def refusal(text: str, *overrides: str) -> str:
    """Return the message that refuses the text with these overrides."""
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(text, "file.yaml", overrides)
    return str(caught.value)
