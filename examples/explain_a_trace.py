"""What sets the step in a trace?

python examples/explain_a_trace.py run.pt.trace.json.gz
"""

import sys

from profiling import explain


def main(path: str) -> None:
    """Print the reading, what the step is made of, and what a graph would make of it."""
    found = explain(path)
    print(found.reading.label, "-", found.reading.headline)
    for part, us in found.reading.mean.parts_us.items():
        print(f"  {part}: {us:.0f} us per step")
    if found.prediction and found.prediction.replay_us:
        low, mid, high = found.prediction.replay_us
        print(f"  {found.prediction.kind}: {mid:.0f} us [{low:.0f}, {high:.0f}]")


if __name__ == "__main__":
    main(sys.argv[1])
