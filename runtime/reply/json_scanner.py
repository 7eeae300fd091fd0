"""Follows one JSON value through text that arrives in pieces, and stops at the first character that
cannot belong to it.

Strict (RFC 8259) with one mercy: raw control characters inside strings, which models write where
code is an argument, are passed on as escapes. Keeps no text but the word or number at hand.
"""

import re

MAX_DEPTH = 64  # nested arrays and objects
_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = ("true", "false", "null")
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class JsonScanner:
    """Feed it text; `is_complete` once the value has ended, `is_broken` once it is none."""

    def __init__(self) -> None:
        self.is_complete = False
        self.is_broken = False
        self._open: list[str] = []  # "{" or "[" of every container around
        # What may come: value, first (value or end of array), key, first_key (or end of object),
        # colon, comma (or end), string, escape, hex, word, number.
        self._state = "value"
        self._is_key = False
        self._token = ""  # the word, number or hex digits at hand

    def feed(self, text: str) -> tuple[int, str]:
        """(characters of `text` that belong to the value, their JSON text)."""
        at, output = 0, []
        while at < len(text) and not self.is_complete and not self.is_broken:
            if self._state == "string":
                end = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
                output.append(text[at:end])
                at = end
                if at == len(text):
                    break
            character = text[at]
            if self._is_taken(character):
                output.append(self._spelled(character))
                at += 1
        return at, "".join(output)

    def _spelled(self, character: str) -> str:
        if character < " " and self._state == "string":
            return _ESCAPED.get(character) or f"\\u{ord(character):04x}"
        return character

    def _is_taken(self, character: str) -> bool:
        """Move on by one character; False where it does not belong to the value or has to be looked
        at again.
        """
        match self._state:
            case "string":
                return self._in_string(character)
            case "escape":
                self._state = "hex" if character == "u" else "string"
                self.is_broken = character not in '"\\/bfnrtu'
            case "hex":
                self._token += character
                self.is_broken = character not in "0123456789abcdefABCDEF"
                if len(self._token) == 4:
                    self._token, self._state = "", "string"
            case "word":
                return self._in_word(character)
            case "number":
                return self._in_number(character)
            case _ if character in _SPACE:
                return True
            case "colon":
                self._state = "value"
                self.is_broken = character != ":"
            case "comma":
                self._after_value(character)
            case "first_key" if character == "}":
                self._close(character)
            case "key" | "first_key":
                self._state, self._is_key = "string", True
                self.is_broken = character != '"'
            case "first" if character == "]":
                self._close(character)
            case _:
                self._begin_value(character)
        return not self.is_broken

    def _begin_value(self, character: str) -> None:
        if character in "{[":
            self._open.append(character)
            self._state = "first_key" if character == "{" else "first"
            self.is_broken = len(self._open) > MAX_DEPTH
        elif character == '"':
            self._state, self._is_key = "string", False
        elif character in "-0123456789":
            self._state, self._token = "number", character
        elif character in "tfn":
            self._state, self._token = "word", character
        else:
            self.is_broken = True

    def _in_string(self, character: str) -> bool:
        if character == "\\":
            self._state = "escape"
        elif character == '"':
            if self._is_key:
                self._state = "colon"
            else:
                self._end_value()
        return True

    def _in_word(self, character: str) -> bool:
        self._token += character
        if self._token in _WORDS:
            self._end_value()
        else:
            self.is_broken = not any(word.startswith(self._token) for word in _WORDS)
        return not self.is_broken

    def _in_number(self, character: str) -> bool:
        if character in "0123456789+-.eE":
            self._token += character
            return True
        if _NUMBER.fullmatch(self._token):
            self._end_value()
        else:
            self.is_broken = True
        return False

    def _after_value(self, character: str) -> None:
        if character == ",":
            self._state = "key" if self._open[-1] == "{" else "value"
        else:
            self._close(character)

    def _close(self, character: str) -> None:
        if character != {"{": "}", "[": "]"}[self._open[-1]]:
            self.is_broken = True
        else:
            self._open.pop()
            self._end_value()

    def _end_value(self) -> None:
        self._state, self._token = "comma", ""
        self.is_complete = not self._open
