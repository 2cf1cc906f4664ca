"""The nano policy: an ordinary Qwen2 of a few million parameters with a tokenizer of its own.

It exists so that the whole pipeline runs on a laptop in minutes. It is a real policy (multi-turn, sampled, trained by
the same learner) and nothing more: no result obtained with it says anything about a 3B model.
"""
