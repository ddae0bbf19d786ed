"""Files of a run folder that are read while a coordinator works in it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.server.runs.test_run_folder import answer, opened, save, start

from fedquilt_common.algorithm_api import State
from fedquilt_common.errors import RunFolderError
from fedquilt_common.types import Arrays
from fedquilt_server.round.events import Checkpoint
from fedquilt_server.runs.open_files import read_extra


@pytest.mark.parametrize("extra", [{}, {"moment/w": np.arange(3, dtype=np.float32)}], ids=["nothing", "a moment"])
def test_what_an_algorithm_keeps_can_be_read_while_the_run_goes_on(extra: Arrays, tmp_path: Path) -> None:
    with opened(tmp_path, resume=False) as run:
        assert read_extra(tmp_path) == {}
        start(run)
        answer(run, 0, 1.0, 110.0)
        seq, commands = answer(run, 1, 2.0, 120.0)
        done = commands[-1]
        assert isinstance(done, Checkpoint)
        save(run, seq, replace(done, state=State(done.state.arrays, extra)))
        found = read_extra(tmp_path)
        assert found.keys() == extra.keys()
        for name, kept in extra.items():
            np.testing.assert_array_equal(found[name], kept)
        if extra:
            (tmp_path / "blobs" / run.checkpoints.last.extra).write_bytes(b"damaged")
            with pytest.raises(RunFolderError, match=r"so `State\.extra` cannot be read"):
                read_extra(tmp_path)


_OTHER_PROCESS = """\
import sys
from pathlib import Path
from fedquilt_server.runs.open_files import open_model
with open_model(Path(sys.argv[1])).file as file:
    print(flush=True)
    sys.stdin.readline()
    print(file.read().hex())
"""


def test_a_model_that_another_process_reads_is_not_written_over(tmp_path: Path) -> None:
    """Such as `fedquilt page`, which reads the folder of a run that goes on."""
    large = {"w": np.zeros(1 << 18, dtype=np.float32)}
    with opened(tmp_path, resume=False) as run:
        start(run)
        answer(run, 0, 1.0, 110.0)
        seq, commands = answer(run, 1, 2.0, 120.0)
        done = commands[-1]
        assert isinstance(done, Checkpoint)
        save(run, seq, replace(done, state=State(large)))
        model = tmp_path / "blobs" / run.checkpoints.last.arrays
        content = model.read_bytes()
        command = [sys.executable, "-c", _OTHER_PROCESS, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            store = run.folder.blobs
            store.clean((), reuse=True)
            store.put({"w": np.ones(1 << 18, dtype=np.float32)})
            told, _ = reader.communicate("\n", timeout=60)
        assert bytes.fromhex(told) == content
