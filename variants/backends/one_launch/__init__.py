"""Backend `one launch`: the whole step in one parallel region of one C++ call.

csrc/ from the bottom up: vec (vectors), weights and quantised (how weights are stored), cached (how keys and
values are), product (rows times vectors), attention, barrier, model (what a step works on), attend and step
(the phases), op (PyTorch operations); read (the plain read of the memory floor); selfcheck (a program for the
sanitizers).
"""
