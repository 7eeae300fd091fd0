"""Parsers of tool calls, a file for each kind of syntax. They know the names of the tools that were
offered: a call of another tool is text.
"""
