"""Artifacts: a whole engine in a folder, sealed by hashes and a signature, which starts without
tracing or compiling.

seal and manifest know files; source makes an engine's parts of an artifact and imports no model;
export writes one. `python -m runtime.aot` inspects, verifies and compares artifacts.
"""
