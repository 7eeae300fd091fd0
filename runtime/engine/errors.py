"""How the engine says that it cannot go on. Imports nothing, so that the server can name it without loading the engine."""


class EngineDeadError(RuntimeError):
    """The engine's thread has ended, by an error or by closing; no request can be answered. The message says why."""
