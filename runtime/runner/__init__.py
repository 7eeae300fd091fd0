"""From a plan to tokens: pads a StepPlan to a bucket, runs the one traced step, fetches its packed
result.
"""
