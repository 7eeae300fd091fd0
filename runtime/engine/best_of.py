"""best_of: more completions than asked for are drawn, and the likeliest per token are the answer.

OpenAI's definition. It knows requests and outputs, no engine. Requests without it pass through.
"""

from dataclasses import replace

from runtime.engine.request import CompletionOutput, Request, RequestOutput


def widened(request: Request) -> Request:
    """The request that draws all candidates, with what is needed to rank them."""
    params = request.params
    if params.best_of in (None, params.n):
        return request
    logprobs = 0 if params.logprobs is None else params.logprobs
    return replace(
        request, params=replace(params, n=params.best_of, logprobs=logprobs, best_of=None)
    )


def best(request: Request, output: RequestOutput) -> RequestOutput:
    """The output of `widened(request)` with the n likeliest completions, best first."""
    params = request.params
    if params.best_of in (None, params.n):
        return output
    ranked = sorted(output.outputs, key=_mean_logprob, reverse=True)[: params.n]
    for index, completion in enumerate(ranked):
        completion.index = index
        if params.logprobs is None:
            completion.logprobs = None
    return replace(output, outputs=ranked)


def _mean_logprob(completion: CompletionOutput) -> float:
    logprobs = [entry.logprob for entry in completion.logprobs or ()]
    return sum(logprobs) / len(logprobs)
