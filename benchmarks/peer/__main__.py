"""Compares fedquilt with Flower on this machine, and keeps the newest comparison in benchmarks/results/peer.jsonl.

    python benchmarks/peer               measure everything, 3 times (10 to 15 minutes on two idle cores)
    python benchmarks/peer --plot        write README's table and docs/images/peer.svg again from the results
    python benchmarks/peer --dry-run --repeats 1 --only "0.1 MB"

It installs Flower into build/peer (1.4 GB), needs Fashion-MNIST in FEDQUILT_DATA, and continues after an interruption.
docs/performance.md explains what is compared.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # for the package peer, and for its neighbours

if __name__ == "__main__":
    from peer.comparison import main

    main(__doc__)
