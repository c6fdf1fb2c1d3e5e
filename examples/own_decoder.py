"""Code of one's own beside the ladder, from Python: a class instead of PATH.py:NAME.

python examples/own_decoder.py [MODEL]
"""

import sys
from pathlib import Path

from profiling import study

sys.path.append(str(Path(__file__).parent / "plugin"))
from lists import Lists


def main(model: str = "gpt2") -> None:
    """Print whether it is proven, and what it is not proven in."""
    entry = study(model, [Lists], contexts=[10], rounds=4).variants["Lists"]
    print(f"Lists is {entry.status} {entry.reason}")
    for check in entry.gate.unproven if entry.gate else ():
        print(f"  not proven: {check.check}, {check.detail}")


if __name__ == "__main__":
    main(*sys.argv[1:])
