"""drawing.py FILE.svg RANKS: a drawing of tutti-topo has a circle for each rank, fits a page, no arrow begins or ends in a
circle, boxes lie in the page, and the legend explains what is drawn and nothing else."""
import math
import re
import sys
import xml.etree.ElementTree as tree

SVG = "{http://www.w3.org/2000/svg}"
PAGE_WIDTH, PAGE_HEIGHT = 980, 1386  # A4
COLOURS = {"#36c": "blue", "#c33": "red"}


def number(element, name):
    return float(element.get(name))


def main():
    root, ranks = tree.parse(sys.argv[1]).getroot(), int(sys.argv[2])
    wrong = []
    width, height = number(root, "width"), number(root, "height")
    if width > PAGE_WIDTH or height > PAGE_HEIGHT:
        wrong.append(f"{width} x {height} does not fit a page")
    circles = [(number(c, "cx"), number(c, "cy"), number(c, "r")) for c in root.iter(SVG + "circle")]
    if len(circles) != ranks:
        wrong.append(f"{len(circles)} circles for {ranks} ranks")
    for i, (x, y, r) in enumerate(circles):
        if any(math.hypot(x - a, y - b) < r + q for a, b, q in circles[:i]):
            wrong.append(f"the circle of rank {i} overlaps another one")
    arrows = [path for path in root.iter(SVG + "path") if path.get("fill") == "none"]
    if len(arrows) != (ranks if ranks > 1 else 0):
        wrong.append(f"{len(arrows)} arrows in a ring of {ranks}")
    for arrow in arrows:
        points = [float(n) for n in re.findall(r"-?[\d.]+", arrow.get("d"))]
        for x, y in (points[:2], points[-2:]):
            if any(math.hypot(x - a, y - b) < r for a, b, r in circles):
                wrong.append(f"the arrow {arrow.get('d')} touches a circle")
    boxes = [box for box in root.iter(SVG + "rect") if box.get("x")]
    for box in boxes:
        if number(box, "x") + number(box, "width") > width or number(box, "y") + number(box, "height") > height:
            wrong.append(f"the box at {box.get('x')}, {box.get('y')} leaves the page")
    legend = root.find(SVG + "text").text
    said = {word: word in legend for word in ("blue", "red", "grey", "green")}
    there = {word: any(arrow.get("stroke") == colour for arrow in arrows) for colour, word in COLOURS.items()}
    there |= {word: any(box.get("fill") == fill for box in boxes) for word, fill in (("grey", "#e8e8e8"), ("green", "#dfd"))}
    if said != there:
        wrong.append(f"the legend '{legend}' does not fit {there}")
    print("\n".join(wrong) or "ok")
    sys.exit(bool(wrong))


main()
