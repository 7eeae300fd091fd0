"""Which tokens run when: requests, sequences, blocks, plans, stopping; the loop that ties them to
the runner.
"""
