"""What sets the step in a trace?

python examples/explain_a_trace.py run.pt.trace.json.gz
"""

import sys

from profiling import explain


def main(path: str) -> None:
    """Print the reading, what the step is made of, and what a graph would make of it."""
    explanation = explain(path)
    print(explanation.reading.label, "-", explanation.reading.headline)
    for part, us in explanation.reading.mean.parts_us.items():
        print(f"  {part}: {us:.0f} us per step")
    if explanation.prediction and explanation.prediction.replay_us:
        low, mid, high = explanation.prediction.replay_us
        print(f"  {explanation.prediction.kind}: {mid:.0f} us [{low:.0f}, {high:.0f}]")


if __name__ == "__main__":
    main(sys.argv[1])
