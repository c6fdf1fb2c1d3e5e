"""Other engines at the same work: one seeded checkpoint, the same prompt, the same number of greedy steps.

checkpoint (one model in every engine's format), engines (a small adapter each), worker (a process per
engine, so that their thread pools and crashes stay apart).
"""
