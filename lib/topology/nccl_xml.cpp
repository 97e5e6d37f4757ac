// NCCL's topology files.
//
//   <system version="1">
//     <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel">
//       <pci busid="0000:16:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">     a switch
//         <pci busid="0000:1a:00.0" class="0x030200" ...> <gpu dev="0" sm="90">
//             <nvlink target="0000:c7:00.0" count="2" tclass="0x030200"/> </gpu> </pci>
//         <pci busid="0000:1b:00.0" class="0x020000" ...> <nic> <net name="mlx5_0" speed="400000"/> </nic> </pci>
//       </pci> </cpu> </system>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "topology/graph.h"

namespace tutti {
namespace {

using Kind = Graph::Kind;

constexpr double kLaneBytes = 1e9 / 8;                         // of a PCIe lane, for each GT/s
constexpr double kUsualPci = 16e9, kBetweenCpus = 20e9;        // where the file does not say
constexpr double kUsualNic = 10000;                            // Mb/s
constexpr double kNvLinkNs = 700, kPciNs = 300, kCpuNs = 300;  // round figures

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::vector<Element> inner;

  std::string get(const std::string& attribute) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? "" : found->second;
  }
  double number(const char* attribute) const { return strtod(get(attribute).c_str(), nullptr); }
};

// As much of XML as these files have: elements with attributes, comments, declarations.
class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Result<Element> document() {
    Element all;
    TUTTI_TRY(read_inside(&all, 0));
    if (all.inner.size() == 1 && all.inner[0].name == "system") return std::move(all.inner[0]);
    return wrong("it has no element system, so it is not a topology file of NCCL's");
  }

 private:
  Error wrong(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    return {Code::kInvalidUsage, format("%s, line %d: %s", file_.c_str(), static_cast<int>(line), what.c_str())};
  }
  // To the end of the element that is open.
  Result<void> read_inside(Element* element, int depth) {
    constexpr int kDeepest = 64;
    if (depth > kDeepest) return wrong("elements are nested deeper than machines are");
    while (true) {
      const size_t open = std::min(text_.find('<', at_), text_.size());
      at_ = open;
      if (open == text_.size()) {
        if (depth == 0) return {};
        return wrong("the file ends within " + element->name);
      }
      if (text_.substr(open, 4) == "<!--") {
        at_ = std::min(text_.find("-->", open), text_.size());
        continue;
      }
      const size_t close = text_.find('>', open);
      if (close == text_.npos) return wrong("a '<' has no '>'");
      const std::string_view tag = text_.substr(open + 1, close - open - 1);
      if (tag.substr(0, 1) == "/") {
        if (depth == 0 || tag.substr(1) != element->name)
          return wrong("</" + std::string(tag.substr(1)) + "> ends no element; open is '" + element->name + "'");
        at_ = close + 1;
        return {};
      }
      at_ = close + 1;
      if (tag.substr(0, 1) == "?" || tag.substr(0, 1) == "!") continue;
      TUTTI_TRY(read_element(tag, element, depth));
    }
  }
  Result<void> read_element(std::string_view tag, Element* holder, int depth) {
    constexpr std::string_view kBlanks = " \t\r\n";
    const bool is_empty = tag.substr(std::max<size_t>(tag.size(), 1) - 1) == "/";
    if (is_empty) tag.remove_suffix(1);
    Element element;
    size_t at = std::min(tag.find_first_of(kBlanks), tag.size());
    element.name = tag.substr(0, at);
    while ((at = tag.find_first_not_of(kBlanks, at)) != tag.npos) {
      const size_t equals = tag.find("=\"", at);
      const size_t end = equals == tag.npos ? tag.npos : tag.find('"', equals + 2);
      if (end == tag.npos) return wrong("'" + std::string(tag) + "' has an attribute that is not name=\"value\"");
      element.attributes.emplace(tag.substr(at, equals - at), tag.substr(equals + 2, end - equals - 2));
      at = end + 1;
    }
    if (!is_empty) TUTTI_TRY(read_inside(&element, depth + 1));
    holder->inner.push_back(std::move(element));
    return {};
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
};

class Builder {
 public:
  explicit Builder(const std::string& file) : file_(file) {}

  Result<Graph> build(const Element& system) {
    std::vector<int> cpus;
    for (const Element& cpu : system.inner) {
      if (cpu.name != "cpu") continue;
      const int node = graph_.add(Kind::kPart, "NUMA node " + cpu.get("numaid"));
      for (const int other : cpus) graph_.join(other, node, kBetweenCpus, kCpuNs);
      cpus.push_back(node);
      TUTTI_TRY(add_inner(cpu, node, std::nullopt));
    }
    TUTTI_TRY(add_links());
    TUTTI_TRY(check(graph_, file_));
    return std::move(graph_);
  }

 private:
  struct Link {
    int gpu;
    std::string target, kind;
    double bytes_per_second;
  };
  Error wrong(const std::string& what) const { return {Code::kInvalidUsage, file_ + ": " + what}; }

  // `way` is that of the PCI device which holds them.
  Result<void> add_inner(const Element& holder, int node, std::optional<double> way) {
    for (const Element& element : holder.inner) {
      if (element.name == "pci") {
        TUTTI_TRY(add_pci(element, node));
      } else if (element.name == "gpu") {
        const int gpu = graph_.add(Kind::kGpu, "GPU " + element.get("dev"));
        graph_.join(node, gpu, way.value_or(kUsualPci), kPciNs);
        gpus_[holder.get("busid")] = gpu;
        TUTTI_TRY(note_links(element, gpu));
      } else if (element.name == "nic") {
        add_nets(element, node, way);
      }
    }
    return {};
  }
  Result<void> add_pci(const Element& pci, int holder) {
    const std::string bus = pci.get("busid");
    if (!buses_.emplace(bus, holder).second)
      return wrong("the PCI device " + bus + " is there twice: the devices would form a cycle");
    double transfers = 0;  // per lane, in GT/s
    sscanf(pci.get("link_speed").c_str(), "%lf", &transfers);
    const double lanes = pci.number("link_width"), coding = transfers > 5 ? 128.0 / 130 : 0.8;
    const double way = transfers > 0 && lanes > 0 ? transfers * lanes * coding * kLaneBytes : kUsualPci;
    if (pci.get("class").rfind("0x0604", 0) != 0) return add_inner(pci, holder, way);
    const int node = graph_.add(Kind::kPciSwitch, "PCIe switch " + bus);
    graph_.join(holder, node, way, kPciNs);
    return add_inner(pci, node, std::nullopt);
  }
  void add_nets(const Element& nic, int node, std::optional<double> way) {
    for (const Element& net : nic.inner) {
      if (net.name != "net") continue;
      const double megabits = net.number("speed") > 0 ? net.number("speed") : kUsualNic;
      graph_.join(node, graph_.add(Kind::kNic, net.get("name")), std::min(way.value_or(kUsualPci), megabits * 1e6 / 8),
                  kPciNs);
    }
  }
  // NVIDIA's and AMD's links between GPUs: so many, each as fast as its generation's.
  Result<void> note_links(const Element& gpu, int node) {
    const double sm = gpu.number("sm");
    const double each = sm >= 100 ? 40e9 : sm < 70 && sm > 0 ? 18e9 : 20e9;
    for (const Element& link : gpu.inner) {
      if (link.name != "nvlink" && link.name != "xgmi") continue;
      const double count = link.number("count");
      if (!(count > 0))
        return wrong("a link of " + graph_.nodes[static_cast<size_t>(node)].name + " to " + link.get("target") +
                     " has the count '" + link.get("count") + "' and so the speed 0");
      links_.push_back({node, link.get("target"), link.get("tclass"), count * (link.name == "xgmi" ? 48e9 : each)});
    }
    return {};
  }
  // Links to switches end at one node, links to GPUs are told by both.
  Result<void> add_links() {
    int fabric = -1;
    for (const Link& link : links_) {
      const auto peer = gpus_.find(link.target);
      if (peer != gpus_.end()) {
        const bool is_told = std::any_of(graph_.edges.begin(), graph_.edges.end(), [&](const Graph::Edge& edge) {
          return edge.a == peer->second && edge.b == link.gpu;
        });
        if (!is_told) graph_.join(link.gpu, peer->second, link.bytes_per_second, kNvLinkNs);
      } else if (link.kind.rfind("0x0680", 0) == 0) {
        if (fabric < 0) fabric = graph_.add(Kind::kFabric, "NVSwitch");
        if (graph_.edges.back().a != link.gpu || graph_.edges.back().b != fabric)
          graph_.join(link.gpu, fabric, 0, kNvLinkNs / 2);
        graph_.edges.back().bytes_per_second += link.bytes_per_second;
      } else {
        return wrong("a link of " + graph_.nodes[static_cast<size_t>(link.gpu)].name + " leads to " + link.target +
                     ", and there is no such GPU");
      }
    }
    return {};
  }

  const std::string& file_;
  Graph graph_;
  std::map<std::string, int> buses_, gpus_;
  std::vector<Link> links_;
};

}  // namespace

Result<Graph> graph_from_nccl_xml(std::string_view text, const std::string& file) {
  TUTTI_TRY_ASSIGN(const Element system, Reader(text, file).document());
  return Builder(file).build(system);
}

}  // namespace tutti
