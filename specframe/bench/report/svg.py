"""A drawn figure as a part of a page: ids of its own, colours that follow the page's, nothing that asks for a file.

Knows SVG only, and the colours by what they are for (``palette.py``).
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from specframe.bench.report.palette import PAGE_COLOURS

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_URL = re.compile(r"url\(#")


def inline(svg: bytes, key: str, title: str, description: str) -> str:
    """Return an SVG file as markup for a page; ``key`` begins every id, so that figures do not take one another's."""
    root = ElementTree.fromstring(svg)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for child in root.findall(f"{_SVG}metadata"):
        root.remove(child)
    for definitions in root.findall(f"{_SVG}defs"):
        for style in definitions.findall(f"{_SVG}style"):
            definitions.remove(style)  # it would hold for the whole page
    for element in root.iter():
        _localise(element, key)
    root.attrib |= {"role": "img", "aria-labelledby": f"{key}-title {key}-description"}
    for index, (name, text) in enumerate((("title", title), ("desc", description))):
        told = ElementTree.Element(f"{_SVG}{name}", {"id": f"{key}-{'title' if name == 'title' else 'description'}"})
        told.text = text
        root.insert(index, told)
    ElementTree.register_namespace("", _SVG[1:-1])
    return ElementTree.tostring(root, encoding="unicode")


def _localise(element: ElementTree.Element, key: str) -> None:
    if reference := element.attrib.pop(_HREF, None):
        element.set("href", f"#{key}-{reference.removeprefix('#')}")
    for name, value in element.attrib.items():
        if name == "id":
            value = f"{key}-{value}"
        elif name in ("style", "clip-path", "fill", "stroke"):
            value = _URL.sub(f"url(#{key}-", value)
            value = _COLOUR.sub(lambda match: PAGE_COLOURS.get(match[0], match[0]), value)
        element.set(name, value)
