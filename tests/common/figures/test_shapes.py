"""The shapes of figures: whatever a label holds, it stays text."""

from __future__ import annotations

from xml.etree import ElementTree

from isonomy.common.figures.shapes import attribute, box, line, marker, path, text

HOSTILE = '"><script>alert(1)</script>&'


def test_labels_cannot_become_markup() -> None:
    shapes = [
        text(1, 2, HOSTILE, size=11, weight="600", colour="#222222", turned=True, tip=HOSTILE),
        box(0, 0, 5, 5, "#d9dde2", tip=HOSTILE),
        *(marker(1, 1, shape, "#333333", tip=HOSTILE) for shape in ("circle", "star")),
        line(0, 0, 1, 1, "#333333", dashed=True),
        path([(0, 0), (1, 1)], "#333333"),
    ]
    drawing = f'<svg aria-label="{attribute(HOSTILE)}">{"".join(shapes)}</svg>'
    root = ElementTree.fromstring(drawing)  # noqa: S314  (our own text)
    assert root.attrib["aria-label"] == HOSTILE
    assert len(root) == len(shapes)
    assert {part.tag for part in root.iter()} <= {
        "svg", "text", "title", "rect", "circle", "polygon", "line", "polyline"
    }  # fmt: skip
    assert [part.text for part in root.iter("title")] == [HOSTILE] * 4
