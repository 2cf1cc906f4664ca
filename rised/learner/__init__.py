"""How weights change: passes, reductions, the optimiser, and the state to resume from.

Blind to methods: it sees sequences of stored tokens and the terms of a loss (``rised.methods.streams``), never a
rubric, a reward or a selection.
"""
