"""Okabe and Ito's colours, which colour-blind readers can tell apart, and what each of them means."""

from __future__ import annotations

INK, LINE, PAPER = "#1f2328", "#d1d9e0", "#ffffff"
BLUE, ORANGE, GREEN, SKY, VERMILION, PURPLE, YELLOW, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#56B4E9",
    "#D55E00",
    "#CC79A7",
    "#C9B800",
    "#8C959F",
)
VIOLET, PALE = "#5F4B8B", "#B9C3CC"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW)  # in an order that differs in brightness too
MEANING = {
    **dict.fromkeys(("compute", "busy", "kernel"), BLUE),
    **dict.fromkeys(("overhead", "gap_during_call", "during_call"), ORANGE),
    **dict.fromkeys(("python", "gap_before_call", "before_call"), VERMILION),
    **dict.fromkeys(("gap_after_call", "after_call"), SKY),
    **dict.fromkeys(("graph", "lead_in"), GREEN),
    **dict.fromkeys(("memcpy", "memset"), YELLOW),
    **dict.fromkeys(("unknown", "gap_unknown"), GREY),
    **dict.fromkeys(("ours", "up to the memory floor", "memory floor", "weights"), BLUE),
    **dict.fromkeys(("above it", "slow ops", "mask"), ORANGE),
    **dict.fromkeys(("launching", "of it Python"), VERMILION),
    "others": PALE,
    "warm-up": GREEN,
    "cache": SKY,
    "artefact": VERMILION,
    "tail": PURPLE,
    "sync": VIOLET,
    "op": PALE,
}


def colour(part: str) -> str:
    """The colour of a part, an op's class, a call or a device event."""
    return MEANING.get(part, GREY)
