"""Which change lowers the step of this model, and how far is it from its memory floor?

python examples/study_a_step.py [MODEL [CONTEXT ...]]
"""

import sys

from profiling import study
from profiling.results.metrics import Measured


def main(model: str = "gpt2", *contexts: str) -> None:
    """Measure two rungs with what they are compared with, and print them."""
    record = study(model, ["tape", "onelaunch"], contexts=[int(n) for n in contexts or ("10", "100")])
    measured = Measured(record)
    for rung in measured.ladder():
        step, floor = rung.steps[measured.contexts[0]], rung.ratio_to_memory_floor
        if step and floor:
            print(f"{rung.variant}: {step.median:.3g} ms, {floor.mid:.2f} times its memory floor")
        else:
            print(f"{rung.variant}: not measured, {rung.reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
