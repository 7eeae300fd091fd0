"""The OpenAI-compatible HTTP server: bodies in, requests to the engine, JSON or server-sent events
out.

It knows HTTP, OpenAI's shapes and the engine's requests and deltas; it knows nothing of models,
steps or devices. One file per concept; runtime.server.app puts them together and runtime.server.run
starts them.
"""
