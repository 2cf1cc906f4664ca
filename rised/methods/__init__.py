"""Which data and which signal: selectors, advantages, teachers, losses, steering.

Each piece is one small file ``rised/methods/<kind>/<piece>.py``, registered under the config's ``type`` and found by
:mod:`rised.methods.registry`; :mod:`rised.methods.composition` puts the pieces of one method together. Nothing here
knows how weights change (``rised.learner``) or in which order stages run. No module of this room imports torch when it
is loaded: losses are written with tensor methods only.
"""
