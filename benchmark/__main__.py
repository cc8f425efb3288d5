"""``python -m benchmark``: the same as ``annobench``."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # `python -m` puts the current folder first; a "models" package that lies there is not ours
    here = os.getcwd()
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if here != home:
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]

    from benchmark.cli import main

    sys.exit(main())
