"""Question: how many bytes do cache, masks and graphs hold, by formula, by their own tensors and by the
allocator?

Claim (article 2): 72 KiB a token and exactly on the formula line, once a warm-up has taken the 8,519,680
bytes of cuBLAS workspace out of the measurement; twelve float32 masks hold 48 MiB, a bool mask is 4x smaller.

Nothing is timed, so nothing is proven. Storages are counted exactly on every device; what only CUDA's
allocator can tell (requested, allocated, graph pool) is left out elsewhere, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.claims import measured
from experiments.shared.measured import contexts_that_fit, model_on_device
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.cost.work import kv_bytes_per_token, weights_stored_bytes
from profiling.results.record import HeldBytes, MemoryRecord, Model, Workload
from profiling.results.record.page import Figure, Table
from profiling.results.record.pictures import Curves, level
from variants.backends.backend import MODULES
from variants.config import PRESETS
from variants.errors import UserError
from variants.ladder import BASELINE, ladder
from variants.slots.cache import CacheOption
from variants.slots.kv import KvOption
from variants.spec import Variant

if TYPE_CHECKING:
    from variants.model import GPT

EXAMPLES = ("", "--quick", "--context 64,512,1024 --batch 4")
ALL, QUICK = (64, 128, 256, 384, 512, 640, 704, 832, 960, 1024), (64, 512, 1024)
MIB = 2**20
HUMP = 384, 640  # contexts between which the second article saw the allocator hold more
NO_ALLOCATOR = "allocator and graph pool: need a CUDA device; on this one the storages are the whole account"


def main(argv: Sequence[str] | None = None) -> int:
    usual, quick = Workload(contexts=ALL), Workload(contexts=QUICK)
    parser = cli.common_parser("experiments.memory", __doc__ or "", EXAMPLES, usual, quick, used=("context",))
    arguments = parser.parse_args(argv)
    model, device = model_on_device(arguments)
    if arguments.batch < 1:
        raise UserError(f"--batch must be at least 1, got {arguments.batch}")
    limit = model.config.n_ctx
    wanted = arguments.context or contexts_that_fit(QUICK if arguments.quick else ALL, model.config, 0)
    contexts = sorted(set(wanted))
    if contexts[0] < 2 or contexts[-1] > limit:
        raise UserError(f"--context must be between 2 and {limit}, what this model holds")
    from profiling.measure.environment import environment
    from profiling.measure.footprint import cache_bytes, graph_pool_bytes, mask_bytes, warm_up_bytes
    from profiling.results.folder import RunFolder

    run = RunFolder.create(arguments.out, MemoryRecord, device.type)
    rungs = ladder(arguments.precision)
    cold = warm_up_bytes(rungs[BASELINE], model, arguments.batch, contexts[0])  # before any other matmul
    account = HeldBytes(
        batch=arguments.batch,
        layers=model.config.n_layer,
        contexts=contexts,
        weights=weights_stored_bytes(model.config, model.dtype.itemsize),
        formula=[formula_bytes(model, n, arguments.batch) for n in contexts],
        caches={
            variant.name: [cache_bytes(variant, model, arguments.batch, n) for n in contexts]
            for variant in one_of_each_cache(rungs)
        },
        masks=mask_bytes(model.config, device),
        warm_up=cold,
        graph_pool=graph_pool_bytes(rungs["cudagraph"], model, arguments.batch),
    )
    run.update(environment=environment(device), model=Model(arguments.model), memory=account)
    return conclude(arguments, __doc__ or "", run, outcome(account, model, arguments.quick))


def formula_bytes(model: GPT, context: int, batch: int) -> int:
    return kv_bytes_per_token(model.config, model.dtype.itemsize) * context * batch


def one_of_each_cache(rungs: dict[str, Variant]) -> list[Variant]:
    """The first rung with each option of the slots that decide how the past is stored."""
    first_of: dict[tuple[CacheOption, KvOption], Variant] = {}
    for variant in rungs.values():
        if variant.cache.keeps and variant.backend is MODULES:
            first_of.setdefault((variant.cache, variant.kv), variant)
    return list(first_of.values())


# -- from the record to what is shown ---------------------------------------------------------


def outcome(account: HeldBytes, model: GPT, quick: bool) -> Outcome:
    contexts, caches = account.contexts, account.caches
    notes = []
    if account.warm_up is None:
        notes.append(NO_ALLOCATOR)
    if quick:
        notes.append(f"left out by --quick: contexts other than {', '.join(map(str, QUICK))}")
    tables = [_cache_table(account), _mask_table(account)]
    if account.warm_up:
        tables.append(_allocator_table(account))
    lines = {"formula": [(n, size / MIB) for n, size in zip(contexts, account.formula, strict=True)]}
    for name, sizes in caches.items():
        lines[name] = [(n, size.tensors / MIB) for n, size in zip(contexts, sizes, strict=True)]
    fixed = {"weights": account.weights, "float32 masks": account.masks["per-layer float32"]}
    bounds = {name: level(contexts, size / MIB) for name, size in fixed.items()}
    figure = Figure(
        "memory",
        f"What each cache holds at batch {account.batch}, beside weights and mask buffers. "
        "A hidden line equals the one over it.",
        [Curves("context, tokens in the cache", "MiB", lines, bounds)],
    )
    per_token = kv_bytes_per_token(model.config, model.dtype.itemsize)
    what = f"{per_token / 1024:g} KiB a token, the tensors of `{BASELINE}` hold exactly what the formula says"
    return Outcome(what, [*_statements(account), *_figures(account, model)], [figure, *tables], notes)


def _cache_table(account: HeldBytes) -> Table:
    rows = [
        (f"{n:,}", f"{formula:,}", *(f"{sizes[number].tensors:,}" for sizes in account.caches.values()))
        for number, (n, formula) in enumerate(zip(account.contexts, account.formula, strict=True))
    ]
    title = "Bytes of the cache by formula, and of each cache's own storages"
    return Table(("context", "formula", *account.caches), rows, title=title)


def _mask_table(account: HeldBytes) -> Table:
    rows = [(name, f"{size:,}", f"{size / MIB:,.3g}") for name, size in account.masks.items()]
    pool = account.graph_pool
    rows.append(
        (
            "CUDA graph's pool",
            *((f"{pool:,}", f"{pool / MIB:,.3g}") if pool is not None else ("not measured", "")),
        )
    )
    title = "Mask buffers, and what a captured graph keeps"
    return Table(("kept", "bytes", "MiB"), rows, title=title)


def _allocator_table(account: HeldBytes) -> Table:
    """CUDA: what the allocator counts for `cat`, above a baseline taken after a warm-up."""
    rows = []
    for number, n in enumerate(account.contexts):
        formula, size = account.formula[number], account.caches[BASELINE][number]
        assert size.requested is not None  # this is CUDA
        above = (size.requested - formula, _bumps(account)[n])
        rows.append((f"{n:,}", f"{formula:,}", f"{size.requested:,}", *(f"{x:,}" for x in above)))
    title = f"Allocator; without a warm-up {account.warm_up:,} bytes more are taken for cache"
    return Table(("context", "formula", "requested", "above formula", "bump"), rows, title=title)


def _statements(account: HeldBytes) -> list[Check]:
    """The article's sentences, each with the rule that decides it."""
    sizes = [size.requested or size.tensors for size in account.caches[BASELINE]]
    off = max(abs(size - formula) for size, formula in zip(sizes, account.formula, strict=True))
    masks = account.masks
    layers, shared = masks["per-layer float32"], masks["shared bool"]
    ratio = layers / shared / account.layers
    by = "the allocator's requested bytes" if account.warm_up else "the storages"
    return [
        Check(
            "memory.line",
            f"{off:,} bytes off",
            f"{by} at every context; on the line is no byte off",
            off == 0,
        ),
        Check(
            "memory.bool", f"{ratio:g}x smaller", f"and shared by all layers {layers / shared:g}x", ratio == 4
        ),
    ]


def _figures(account: HeldBytes, model: GPT) -> list[Check]:
    if account.warm_up is None or model.config != PRESETS["gpt2"]:
        return []
    above_mib = {n: above / MIB for n, above in _bumps(account).items()}
    hump = max((above for n, above in above_mib.items() if HUMP[0] <= n <= HUMP[1]), default=0.0)
    later = [str(n) for n, above in above_mib.items() if n > HUMP[1] and above]
    return [
        measured("memory.workspace", account.warm_up, "{:,.0f}", "the workspace of this GPU's cuBLAS"),
        measured("memory.hump", hump, "{:.1f} MiB", "of the contexts that were looked at"),
        Check(
            "memory.bumps", " and ".join(later) or "none", f"contexts beyond {HUMP[1]} that were looked at"
        ),
    ]


def _bumps(account: HeldBytes) -> dict[int, int]:
    """CUDA: bytes that the allocator holds for `cat` above what was requested, by context."""
    sizes = dict(zip(account.contexts, account.caches[BASELINE], strict=True))
    return {n: (size.allocated or 0) - (size.requested or 0) for n, size in sizes.items()}


if __name__ == "__main__":
    cli.run(main)
