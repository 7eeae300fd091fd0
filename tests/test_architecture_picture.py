"""The picture in docs/architecture.md shows the imports that exist, no more and no fewer."""

import re

from module_imports import ROOMS, ROOT, room_edges

PICTURE = ROOT / "docs" / "architecture.md"
LEFT_OUT = {"settings"}  # every room may read them; the page says so instead of drawing it


def test_the_picture_of_rooms_equals_the_imports() -> None:
    """Oracle: the import statements of the source, against the first mermaid block's arrows."""
    block = re.search(r"```mermaid\n(.*?)```", PICTURE.read_text(), re.DOTALL)
    assert block, "docs/architecture.md has no mermaid block"
    drawn = set(re.findall(r"^\s*(\w+) --> (\w+)\s*$", block[1], re.MULTILINE))
    real = {edge for edge in room_edges() if not LEFT_OUT & set(edge)}
    assert drawn == real, f"to draw: {real - drawn}; to erase: {drawn - real}"


def test_the_picture_names_every_module_group_of_its_rooms() -> None:
    """Oracle: the table of rooms, against the labels of the first mermaid block."""
    text = PICTURE.read_text()
    labels = dict(re.findall(r'^\s*(\w+)\["(.*?)"\]', text, re.MULTILINE))
    for room, label in labels.items():
        assert set(re.findall(r"[\w.]+\b", label.split("<br>")[0])) == set(ROOMS[room]), room
    drawn = {room for edge in room_edges() for room in edge} - LEFT_OUT
    assert drawn <= labels.keys()
