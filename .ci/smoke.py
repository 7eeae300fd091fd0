"""Smoke run of an installed Halogen: the default model generates a few tokens."""

from runtime import LLM, SamplingParams

output = LLM("", max_num_seqs=1, max_model_len=64).generate(
    ["The capital of France is"], SamplingParams(temperature=0, max_tokens=4)
)[0]
print(repr(output.outputs[0].text))
assert len(output.outputs[0].token_ids) == 4, output
