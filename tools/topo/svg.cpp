#include <algorithm>

#include "picture.h"

namespace tutti::topo {
namespace {

constexpr int kPad = 8, kLine = 16, kCoreWidth = 76, kRadius = 11;

struct Point {
  int x = 0, y = 0;
};

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<')
      safe += "&lt;";
    else if (c == '&')
      safe += "&amp;";
    else
      safe += c;
  }
  return safe;
}

// Boxes in boxes: what holds others puts them side by side, below its name and its own ranks.
struct Drawing {
  const Picture& picture;
  std::string boxes;
  std::vector<Point> seats;

  std::vector<int> ranks_at(size_t host, const std::vector<uint32_t>& path) const {
    std::vector<int> found;
    if (picture.ranks.empty()) return found;
    for (const int rank : picture.layout.hosts[host])
      if (picture.ranks[static_cast<size_t>(rank)].path == path) found.push_back(rank);
    return found;
  }

  // Draws it with its corner at `at` and returns its width and height.
  Point draw(const Part& part, const std::string& name, size_t host, const std::vector<uint32_t>& path, Point at) {
    int x = at.x + kPad, width = std::max(kCoreWidth, 7 * static_cast<int>(name.size()) + 2 * kPad);
    int y = at.y + kLine + kPad, height = 0;
    const size_t slot = boxes.size();  // the box goes behind what is in it
    int rank_x = x + kRadius;
    for (const int rank : ranks_at(host, path)) {
      seats[static_cast<size_t>(rank)] = {rank_x, y + kRadius};
      rank_x += 2 * kRadius + 4;
      height = 2 * kRadius + kPad;
    }
    width = std::max(width, rank_x - at.x);
    y += height;
    int tallest = 0;
    for (size_t i = 0; i < part.parts.size(); i++) {
      const Part& inner = part.parts[i];
      std::vector<uint32_t> below = path;
      below.push_back(static_cast<uint32_t>(i));
      const bool is_device = inner.kind == Part::Kind::kDevice;
      const Point size = draw(inner, inner.name + (is_device ? ": " + inner.detail : ""), host, below, {x, y});
      x += size.x + kPad;
      tallest = std::max(tallest, size.y + kPad);
    }
    width = std::max(width, x - at.x);
    height = y + tallest - at.y;
    boxes.insert(slot, format("<rect x='%d' y='%d' width='%d' height='%d' fill='#%s' stroke='#555'/>\n"
                              "<text x='%d' y='%d'>%s</text>\n",
                              at.x, at.y, width, height, part.kind == Part::Kind::kDevice ? "dfd" : "f6f6f6",
                              at.x + kPad, at.y + kLine - 3, escaped(name).c_str()));
    return {width, height};
  }

  std::string ring() const {
    std::string lines;
    const size_t n = picture.layout.order.size();
    for (size_t i = 0; n > 1 && i < n; i++) {
      const int from = picture.layout.order[i], to = picture.layout.order[(i + 1) % n];
      const Point a = seats[static_cast<size_t>(from)], b = seats[static_cast<size_t>(to)];
      const bool crosses = shared_by(picture, from, to) == "the network";
      // Bent, so that there and back do not cover each other.
      lines += format("<path d='M%d %d Q%d %d %d %d' fill='none' stroke='%s' stroke-width='2'/>\n", a.x, a.y,
                      (a.x + b.x) / 2 + (b.y - a.y) / 6, (a.y + b.y) / 2 - (b.x - a.x) / 6, b.x, b.y,
                      crosses ? "#c33" : "#36c");
    }
    for (size_t rank = 0; rank < seats.size(); rank++)
      lines += format(
          "<circle cx='%d' cy='%d' r='%d' fill='#fff' stroke='#36c' stroke-width='2'/>\n"
          "<text x='%d' y='%d' text-anchor='middle'>%zu</text>\n",
          seats[rank].x, seats[rank].y, kRadius, seats[rank].x, seats[rank].y + 4, rank);
    return lines;
  }
};

}  // namespace

std::string to_svg(const Picture& picture) {
  Drawing drawing{picture, {}, std::vector<Point>(picture.ranks.size())};
  Point corner{kPad, kPad + kLine};
  int width = 600;
  for (size_t host = 0; host < picture.hosts.size(); host++) {
    const Point size = drawing.draw(picture.hosts[host].machine.whole, picture.hosts[host].name, host, {}, corner);
    corner.y += size.y + 3 * kPad;
    width = std::max(width, size.x + 2 * kPad);
  }
  return format(
             "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' font-size='12'>\n"
             "<text x='%d' y='%d'>Lines: the ring of ranks, red where it crosses the network.</text>\n",
             width, corner.y, kPad, kLine - 2) +
         drawing.boxes + drawing.ring() + "</svg>\n";
}

}  // namespace tutti::topo
