#include <algorithm>
#include <cmath>

#include "picture.h"

namespace tutti::topo {
namespace {

constexpr int kPad = 6, kLine = 16, kRadius = 11, kCircle = 2 * kRadius + 6, kPageWidth = 960;
// Minimal width of a part that has another one beside it, if there is room.
constexpr int kLeastColumn = 300;
constexpr const char* kOnHost = "#36c";
constexpr const char* kOverNetwork = "#c33";

struct Point {
  int x = 0, y = 0;
};

int text_width(const std::string& text) {
  return 7 * static_cast<int>(text.size());
}

// A part with its place in the box around it.
struct Box {
  std::string name;
  const char* fill = "#fff";
  Point at, size;
  std::vector<std::pair<int, Point>> ranks;  // with the centres of their circles
  std::vector<Box> inner;
};

// Places things of different sizes in rows from left to right, each row below the previous one.
class Rows {
 public:
  Rows(Point corner, int width) : corner_(corner), next_(corner), width_(width) {}
  Point place(Point size) {
    if (next_.x > corner_.x && next_.x + size.x > corner_.x + width_) next_ = {corner_.x, bottom_ + kPad};
    const Point at = next_;
    next_.x += size.x + kPad;
    right_ = std::max(right_, at.x + size.x);
    bottom_ = std::max(bottom_, at.y + size.y);
    return at;
  }
  int right() const { return right_; }
  int bottom() const { return bottom_; }

 private:
  Point corner_, next_;
  int width_;
  int right_ = 0, bottom_ = 0;
};

// What the legend must explain.
struct Drawn {
  bool idle = false, devices = false, on_host = false, over_network = false;
};

class Drawing {
 public:
  explicit Drawing(const Picture& picture) : picture_(picture), seats_(picture.ranks.size()) {}

  std::string svg() {
    Rows rows({kPad, kLine + 3 * kPad}, kPageWidth - 2 * kPad);
    std::string boxes;
    for (size_t host = 0; host < picture_.hosts.size(); host++) {
      Box box = lay_out(picture_.hosts[host].machine.whole, picture_.hosts[host].name, host, {}, kPageWidth - 2 * kPad);
      box.at = rows.place(box.size);
      boxes += draw(box, {});
    }
    const std::string lines = ring() + circles();
    const int width = std::max({rows.right() + kPad, text_width(legend_) + 2 * kPad, 300});
    return format(
               "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d' "
               "font-family='sans-serif' font-size='12'>\n<rect width='100%%' height='100%%' fill='#fff'/>\n"
               "<text x='%d' y='%d'>%s</text>\n",
               width, rows.bottom() + kPad, width, rows.bottom() + kPad, kPad, kLine, legend_.c_str()) +
           boxes + lines + "</svg>\n";
  }

 private:
  // Whether there are ranks in the part or in anything inside it.
  bool is_used(size_t host, const std::vector<uint32_t>& path) const {
    if (picture_.ranks.empty()) return true;
    return std::any_of(picture_.layout.hosts[host].begin(), picture_.layout.hosts[host].end(), [&](int rank) {
      const std::vector<uint32_t>& own = picture_.ranks[static_cast<size_t>(rank)].path;
      return own.size() >= path.size() && std::equal(path.begin(), path.end(), own.begin());
    });
  }

  void add_ranks(size_t host, const std::vector<uint32_t>& path, Rows& rows, Box& box) const {
    if (picture_.ranks.empty()) return;
    for (const int rank : picture_.layout.hosts[host]) {
      if (picture_.ranks[static_cast<size_t>(rank)].path != path) continue;
      const Point corner = rows.place({kCircle - kPad, 2 * kRadius});
      box.ranks.push_back({rank, {corner.x + kRadius, corner.y + kRadius}});
    }
  }

  Box small_box(const std::string& name, const char* fill) const {
    return {name, fill, {}, {text_width(name) + 2 * kPad, kLine + 2 * kPad}, {}, {}};
  }

  // Consecutive parts without ranks become one box, which only shows their devices.
  Box idle_box(const Part& first, const Part& last) {
    drawn_.idle = true;
    return small_box(&first == &last ? first.name : first.name + " to " + last.name, "#e8e8e8");
  }

  void add_devices(const Part& part, std::vector<Box>& to) {
    for (const Part& inner : part.parts) {
      if (inner.kind == Part::Kind::kDevice) {
        drawn_.devices = true;
        to.push_back(small_box(inner.name + ": " + inner.details(), "#dfd"));
      }
      add_devices(inner, to);
    }
  }

  std::vector<Box> boxes_in(const Part& part, size_t host, const std::vector<uint32_t>& path, int width) {
    const auto holds_others = [](const Part& inner) { return !inner.parts.empty(); };
    if (std::count_if(part.parts.begin(), part.parts.end(), holds_others) > 1 && width > 2 * kLeastColumn + kPad)
      width = (width - kPad) / 2;
    std::vector<Box> boxes;
    for (size_t i = 0; i < part.parts.size(); i++) {
      const Part& inner = part.parts[i];
      const auto path_of = [&](size_t place) {
        std::vector<uint32_t> below = path;
        below.push_back(static_cast<uint32_t>(place));
        return below;
      };
      if (inner.kind == Part::Kind::kDevice) continue;
      if (is_used(host, path_of(i))) {
        boxes.push_back(lay_out(inner, inner.name, host, path_of(i), width));
        continue;
      }
      if (inner.kind == Part::Kind::kCpu) continue;  // a rank has all CPUs of its core
      size_t last = i;
      while (last + 1 < part.parts.size() && part.parts[last + 1].kind == inner.kind &&
             !is_used(host, path_of(last + 1)))
        last++;
      boxes.push_back(idle_box(inner, part.parts[last]));
      for (; i < last; i++) add_devices(part.parts[i], boxes);
      add_devices(part.parts[last], boxes);
    }
    for (const Part& inner : part.parts) {
      if (inner.kind != Part::Kind::kDevice) continue;
      drawn_.devices = true;
      boxes.push_back(small_box(inner.name + ": " + inner.details(), "#dfd"));
    }
    return boxes;
  }

  // At most `width`, chosen so that the last row is about as full as the others.
  static int even_width(const std::vector<Box>& boxes, int width) {
    int all = 0, widest = 0;
    for (const Box& box : boxes) {
      all += box.size.x + kPad;
      widest = std::max(widest, box.size.x);
    }
    const int n_rows = (all + width - 1) / width;
    return n_rows < 2 ? width : std::clamp(all / n_rows + widest / 2, widest, std::max(widest, width));
  }

  // A box of at most this width, if possible: its name, its own ranks, and its inner parts in rows.
  Box lay_out(const Part& part, const std::string& name, size_t host, const std::vector<uint32_t>& path, int width) {
    Box box = small_box(name, part.kind == Part::Kind::kCore || part.kind == Part::Kind::kCpu ? "#fff" : "#f6f6f6");
    const int inner_width = width - 2 * kPad;
    Rows ranks({kPad, kLine + kPad}, inner_width);
    add_ranks(host, path, ranks, box);
    const int below = box.ranks.empty() ? kLine + kPad : ranks.bottom() + kPad;
    box.inner = boxes_in(part, host, path, inner_width);
    Rows rows({kPad, below}, even_width(box.inner, inner_width));
    for (Box& inner : box.inner) inner.at = rows.place(inner.size);
    box.size = {std::max({box.size.x, ranks.right() + kPad, rows.right() + kPad}),
                std::max({box.size.y - kPad, ranks.bottom() + kPad, rows.bottom() + kPad})};
    return box;
  }

  // Also records where ranks are on the page.
  std::string draw(const Box& box, Point around) {
    const Point at = {around.x + box.at.x, around.y + box.at.y};
    std::string out =
        format("<rect x='%d' y='%d' width='%d' height='%d' fill='%s' stroke='#999'/>\n<text x='%d' y='%d'>%s</text>\n",
               at.x, at.y, box.size.x, box.size.y, box.fill, at.x + kPad, at.y + kLine - 2, xml_text(box.name).c_str());
    for (const auto& [rank, middle] : box.ranks) seats_[static_cast<size_t>(rank)] = {at.x + middle.x, at.y + middle.y};
    for (const Box& inner : box.inner) out += draw(inner, at);
    return out;
  }

  // From the edge of one circle to that of the other, bent a little, so that opposite arrows do not cover each other.
  static std::string arrow(Point a, Point b, bool crosses) {
    const double x = b.x - a.x, y = b.y - a.y, length = std::max(1.0, std::hypot(x, y));
    const double bend = std::min(length / 6, 40.0);
    const double middle_x = (a.x + b.x) / 2.0 + y / length * bend, middle_y = (a.y + b.y) / 2.0 - x / length * bend;
    // A point at that distance from the centre of a circle, in the direction of the bend.
    const auto near = [&](Point of, double distance) {
      const double to_x = middle_x - of.x, to_y = middle_y - of.y, far = std::max(1.0, std::hypot(to_x, to_y));
      return std::pair(of.x + to_x / far * distance, of.y + to_y / far * distance);
    };
    const auto from = near(a, kRadius + 2), tip = near(b, kRadius + 2), back = near(b, kRadius + 9);
    const double across_x = (back.second - tip.second) / 2, across_y = (tip.first - back.first) / 2;
    const char* const color = crosses ? kOverNetwork : kOnHost;
    return format("<path d='M%.1f %.1f Q%.1f %.1f %.1f %.1f' fill='none' stroke='%s' stroke-width='1.5'/>\n",
                  from.first, from.second, middle_x, middle_y, back.first, back.second, color) +
           format("<path d='M%.1f %.1f L%.1f %.1f L%.1f %.1f Z' fill='%s'/>\n", tip.first, tip.second,
                  back.first + across_x, back.second + across_y, back.first - across_x, back.second - across_y, color);
  }

  std::string ring() {
    std::string lines;
    const size_t n = picture_.layout.order.size();
    for (size_t i = 0; n > 1 && i < n; i++) {
      const int from = picture_.layout.order[i], to = picture_.layout.order[(i + 1) % n];
      const bool crosses = shared_by(picture_, from, to) == "the network";
      (crosses ? drawn_.over_network : drawn_.on_host) = true;
      lines += arrow(seats_[static_cast<size_t>(from)], seats_[static_cast<size_t>(to)], crosses);
    }
    legend_ = picture_.ranks.empty() ? "the machine" : "circles: ranks";
    if (drawn_.on_host)
      legend_ += drawn_.over_network ? "; arrows: the ring, blue on a host" : "; blue arrows: the ring";
    if (drawn_.over_network)
      legend_ += drawn_.on_host ? ", red over the network" : "; red arrows: the ring, over the network";
    if (drawn_.idle) legend_ += "; grey: no ranks are bound there";
    if (drawn_.devices) legend_ += "; green: devices";
    return lines;
  }

  std::string circles() const {
    std::string out;
    for (size_t rank = 0; rank < seats_.size(); rank++)
      out += format(
          "<circle cx='%d' cy='%d' r='%d' fill='#fff' stroke='%s' stroke-width='2'/>\n"
          "<text x='%d' y='%d' text-anchor='middle'>%zu</text>\n",
          seats_[rank].x, seats_[rank].y, kRadius, kOnHost, seats_[rank].x, seats_[rank].y + 4, rank);
    return out;
  }

  const Picture& picture_;
  std::vector<Point> seats_;
  Drawn drawn_;
  std::string legend_;
};

}  // namespace

std::string to_svg(const Picture& picture) {
  return Drawing(picture).svg();
}

}  // namespace tutti::topo
