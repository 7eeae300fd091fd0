"""How a hot operation runs: one folder per operation, the plain jnp reference first.

An operation's api.py is its contract; reference.py is its specification and portable
implementation; other files are faster implementations of the same contract. dispatch.py chooses
among them by platform.
"""
