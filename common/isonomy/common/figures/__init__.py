"""Pictures in one house style: static SVG with no script, no network and no library.

A `figure.Figure` is a title, a verdict in words and panels; it is saved as SVG or HTML, and a
notebook shows it. `panels` has points, lines, intervals, bands and rows; `style` the colours, light
and dark; `shapes` the SVG elements. Models, reports and pages draw with these. The room knows no
data: who draws says where the numbers come from.
"""
