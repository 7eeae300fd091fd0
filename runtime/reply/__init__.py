"""A model's reply: its text as it comes, turned into reasoning, content and tool calls.

Knows the ways in which models write these things, not HTTP, not OpenAI's shapes and not the engine.
`runtime.reply.formats` chooses the format of a model once; `ReplyFormat.parser` makes a parser for
one completion. Feed it text, get parts (`runtime.reply.parts`); the parts are the same, but for how
their texts are cut into pieces, however the text is cut:

    parser = reply_format.parser(tools, prompt_end)
    for text in deltas:
        for part in parser.push(text): ...
    for part in parser.finish(): ...

`Reply` adds parts up to the whole answer.
"""
