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
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>

#include "tools/topo/graph.h"

namespace tutti {
namespace {

using Kind = Graph::Kind;

constexpr double kLaneBytes = 1e9 / 8;                   // of a PCIe lane, for each GT/s
constexpr double kUsualPci = 16e9, kBetweenCpus = 20e9;  // if the file does not say
constexpr double kUsualNic = 10000;                      // Mb/s
constexpr double kPciNs = 300, kCpuNs = 300;             // round figures
constexpr double kXgmi = 48e9;                           // AMD's links between GPUs
constexpr const char *kNumaNode = "NUMA node ", *kSwitchName = "PCIe switch ", *kGpuName = "GPU ";

double pci_bytes_per_second(double transfers, double lanes) {  // of each lane, in GT/s
  return transfers * lanes * (transfers > 5 ? 128.0 / 130 : 0.8) * kLaneBytes;
}

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

constexpr std::pair<char, const char*> kEntities[] = {
    {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&apos;"}};

std::string unescaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto entity = std::find_if(std::begin(kEntities), std::end(kEntities),
                                     [&](auto& e) { return text.substr(0, strlen(e.second)) == e.second; });
    const bool is_entity = entity != std::end(kEntities);
    out += is_entity ? entity->first : text[0];
    text.remove_prefix(is_entity ? strlen(entity->second) : 1);
  }
  return out;
}

// The subset of XML that these files use: elements with attributes, comments, declarations.
class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Result<Element> document() {
    while ((at_ = std::min(text_.find('<', at_), text_.size())) < text_.size()) {
      if (text_.substr(at_).starts_with("<!--")) {
        at_ = text_.find("-->", at_);
        continue;
      }
      const size_t close = text_.find('>', at_);
      if (close == text_.npos) return wrong("a '<' has no '>'");
      TUTTI_TRY(take(text_.substr(at_ + 1, close - at_ - 1)));
      at_ = close + 1;
    }
    if (open_.size() > 1) return wrong("the file ends inside " + open_.back().name);
    std::vector<Element>& all = open_[0].inner;
    if (all.size() == 1 && all[0].name == "system") return std::move(all[0]);
    return wrong("it has no system element, so it is not an NCCL topology file");
  }

 private:
  Error wrong(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    return {Code::kInvalidUsage, format("%s, line %d: %s", file_.c_str(), static_cast<int>(line), what.c_str())};
  }
  Result<void> take(std::string_view tag) {
    constexpr size_t kDeepest = 64;
    if (tag.starts_with('?') || tag.starts_with('!')) return {};
    const bool ends = tag.starts_with('/'), is_empty = tag.ends_with('/');
    if (ends && (open_.size() == 1 || tag.substr(1) != open_.back().name))
      return wrong("</" + std::string(tag.substr(1)) + "> closes no open element; the innermost open one is '" +
                   open_.back().name + "'");
    if (!ends) {
      if (open_.size() > kDeepest) return wrong("elements are nested deeper than in any machine");
      TUTTI_TRY_ASSIGN(Element element, read_element(tag.substr(0, tag.size() - is_empty)));
      open_.push_back(std::move(element));
    }
    if (ends || is_empty) {
      Element whole = std::move(open_.back());
      open_.pop_back();
      open_.back().inner.push_back(std::move(whole));
    }
    return {};
  }
  Result<Element> read_element(std::string_view tag) const {
    constexpr std::string_view kBlanks = " \t\r\n";
    Element element;
    size_t at = std::min(tag.find_first_of(kBlanks), tag.size());
    element.name = tag.substr(0, at);
    while ((at = tag.find_first_not_of(kBlanks, at)) != tag.npos) {
      const size_t equals = tag.find("=\"", at);
      const size_t end = equals == tag.npos ? tag.npos : tag.find('"', equals + 2);
      if (end == tag.npos) return wrong("'" + std::string(tag) + "' has an attribute not of the form name=\"value\"");
      element.attributes.emplace(tag.substr(at, equals - at), unescaped(tag.substr(equals + 2, end - equals - 2)));
      at = end + 1;
    }
    return element;
  }

  const std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  std::vector<Element> open_ = std::vector<Element>(1);  // the file, and the elements in it that are still open
};

class Builder {
 public:
  explicit Builder(const std::string& file) : file_(file) {}

  Result<Graph> build(const Element& system) {
    std::vector<int> cpus;
    for (const Element& cpu : system.inner) {
      if (cpu.name != "cpu") continue;
      const int node = graph_.add(Kind::kPart, kNumaNode + cpu.get("numaid"));
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

  // `way` is the speed of the PCI device that holds them, if there is one.
  Result<void> add_inner(const Element& holder, int node, std::optional<double> way) {
    for (const Element& element : holder.inner) {
      if (element.name == "pci") {
        TUTTI_TRY(add_pci(element, node));
      } else if (element.name == "gpu") {
        const int gpu = graph_.add(Kind::kGpu, kGpuName + element.get("dev"));
        graph_.nodes.back().bus = holder.get("busid");
        graph_.nodes.back().sm = static_cast<int>(element.number("sm"));
        graph_.join(node, gpu, way.value_or(kUsualPci), kPciNs);
        TUTTI_TRY(note_links(element, gpu));
      } else if (element.name == "nic") {
        add_nets(element, node, holder.name == "pci" ? holder.get("busid") : "", way);
      }
    }
    return {};
  }
  Result<void> add_pci(const Element& pci, int holder) {
    const std::string bus = pci.get("busid");
    if (!buses_.insert(bus).second)
      return wrong("the PCI device " + bus + " appears twice: the devices would form a cycle");
    double transfers = 0;  // per lane, in GT/s
    sscanf(pci.get("link_speed").c_str(), "%lf", &transfers);
    const double lanes = pci.number("link_width");
    const double way = transfers > 0 && lanes > 0 ? pci_bytes_per_second(transfers, lanes) : kUsualPci;
    if (pci.get("class").rfind("0x0604", 0) != 0) return add_inner(pci, holder, way);
    const int node = graph_.add(Kind::kPciSwitch, kSwitchName + bus);
    graph_.nodes.back().bus = bus;
    graph_.join(holder, node, way, kPciNs);
    return add_inner(pci, node, std::nullopt);
  }
  void add_nets(const Element& nic, int node, const std::string& bus, std::optional<double> way) {
    for (const Element& net : nic.inner) {
      if (net.name != "net") continue;
      const double megabits = net.number("speed") > 0 ? net.number("speed") : kUsualNic;
      graph_.join(node, graph_.add(Kind::kNic, net.get("name")), std::min(way.value_or(kUsualPci), megabits * 1e6 / 8),
                  kPciNs);
      graph_.nodes.back().bus = bus;
    }
  }
  // NVIDIA's and AMD's links between GPUs: `count` of them, each with the speed of its generation.
  Result<void> note_links(const Element& gpu, int node) {
    const double each = nvlink_bytes_per_second(graph_.nodes[static_cast<size_t>(node)].sm);
    for (const Element& link : gpu.inner) {
      if (link.name != "nvlink" && link.name != "xgmi") continue;
      const double count = link.number("count");
      if (!(count > 0))
        return wrong("a link from " + graph_.nodes[static_cast<size_t>(node)].name + " to " + link.get("target") +
                     " has the count '" + link.get("count") + "', so its speed is 0");
      links_.push_back({node, link.get("target"), link.get("tclass"), count * (link.name == "xgmi" ? kXgmi : each)});
    }
    return {};
  }
  // All switches are one node; both GPUs report a link between them.
  Result<void> add_links() {
    int fabric = -1;
    for (const Link& link : links_) {
      if (const int peer = graph_.gpu_at(link.target); peer >= 0) {
        const bool is_told = std::any_of(graph_.edges.begin(), graph_.edges.end(),
                                         [&](const Graph::Edge& edge) { return edge.a == peer && edge.b == link.gpu; });
        if (!is_told) graph_.join(link.gpu, peer, link.bytes_per_second, kNvLinkNs);
      } else if (link.kind.rfind("0x0680", 0) == 0) {
        if (fabric < 0) {
          fabric = graph_.add(Kind::kFabric, "NVSwitch");
          graph_.nodes.back().bus = link.target;
        }
        if (graph_.edges.back().a != link.gpu || graph_.edges.back().b != fabric)
          graph_.join(link.gpu, fabric, 0, kNvLinkNs / 2);
        graph_.edges.back().bytes_per_second += link.bytes_per_second;
      } else {
        return wrong("a link from " + graph_.nodes[static_cast<size_t>(link.gpu)].name + " leads to " + link.target +
                     ", but there is no such GPU");
      }
    }
    return {};
  }

  const std::string& file_;
  Graph graph_;
  std::set<std::string> buses_;
  std::vector<Link> links_;
};

// The slowest link that carries this much.
std::string pci_link(double bytes_per_second) {
  constexpr double kAlike = 1 - 1e-9;
  double best = HUGE_VAL, best_transfers = 0;
  int best_lanes = 0;
  if (bytes_per_second != kUsualPci)
    for (const double transfers : {2.5, 5.0, 8.0, 16.0, 32.0, 64.0})
      for (const int lanes : {1, 2, 4, 8, 16}) {
        const double speed = pci_bytes_per_second(transfers, lanes);
        if (speed < bytes_per_second * kAlike || speed >= best) continue;
        best = speed, best_transfers = transfers, best_lanes = lanes;
      }
  const std::string speed = best_lanes > 0 ? format("%.1f GT/s PCIe", best_transfers) : "";
  return format(" link_speed=\"%s\" link_width=\"%d\">", speed.c_str(), best_lanes);
}

class Writer {
 public:
  explicit Writer(const Graph& graph) : graph_(graph), holders_(graph.nodes.size(), -1) {
    for (size_t e = graph.edges.size(); e-- > 0;) holders_[index(graph.edges[e].b)] = static_cast<int>(e);
  }

  Result<std::string> document() {
    std::vector<int> cpus;
    for (int node = 0; node < n(); node++)
      if (is_cpu(node)) cpus.push_back(node);
    text_ = "<system version=\"1\">\n";
    for (int node = 0; node < n(); node++)
      if (is_device(node)) {
        const int place = place_of(node);
        inner_[place < 0 && !cpus.empty() ? cpus[0] : place].push_back(node);
      }
    if (cpus.empty()) cpus.push_back(-1);
    for (const int cpu : cpus) {
      line(1, format("<cpu numaid=\"%d\">", cpu < 0 ? 0 : atoi(at(cpu).name.c_str() + strlen(kNumaNode))));
      TUTTI_TRY(write_inner(cpu, 2));
      line(1, "</cpu>");
    }
    if (gpus_ == 0) return Error{Code::kInvalidUsage, "there are no GPUs, and an NCCL topology file describes GPUs"};
    return text_ + "</system>\n";
  }

 private:
  static size_t index(int i) { return static_cast<size_t>(i); }
  int n() const { return static_cast<int>(graph_.nodes.size()); }
  const Graph::Node& at(int node) const { return graph_.nodes[index(node)]; }
  double speed(int node) const { return graph_.edges[index(holders_[index(node)])].bytes_per_second; }
  void line(int depth, const std::string& what) { text_ += std::string(2 * index(depth), ' ') + what + "\n"; }
  bool is_cpu(int node) const { return at(node).kind == Kind::kPart && at(node).name.rfind(kNumaNode, 0) == 0; }
  bool is_device(int node) const {
    const Kind kind = at(node).kind;
    return kind == Kind::kPciSwitch || kind == Kind::kGpu || kind == Kind::kNic;
  }
  // The switch or the NUMA node that holds it; -1: a part that is in no node.
  int place_of(int node) const {
    do {
      const int edge = holders_[index(node)];
      node = edge < 0 ? -1 : graph_.edges[index(edge)].a;
    } while (node >= 0 && !is_cpu(node) && at(node).kind == Kind::kPart);
    return node;
  }
  Result<void> write_inner(int place, int depth) {
    for (const int node : inner_[place]) {
      const std::string pci = "<pci busid=\"" + xml_text(at(node).bus) + "\" class=";
      if (at(node).kind == Kind::kNic) {
        write_nic(place, node, depth);
      } else if (at(node).bus.empty()) {
        return Error{Code::kInvalidUsage, at(node).name + " has no PCI bus id, which an NCCL topology file needs"};
      } else {
        const bool is_gpu = at(node).kind == Kind::kGpu;
        line(depth, pci + (is_gpu ? "\"0x030200\"" : "\"0x060400\"") + pci_link(speed(node)));
        if (is_gpu) write_gpu(node, depth + 1);
        if (!is_gpu) TUTTI_TRY(write_inner(node, depth + 1));
        line(depth, "</pci>");
      }
    }
    return {};
  }
  void write_gpu(int gpu, int depth) {
    const std::string name = at(gpu).name.rfind(kGpuName, 0) == 0 ? at(gpu).name.substr(strlen(kGpuName)) : "";
    const std::string dev = name.empty() ? std::to_string(gpus_) : name;
    gpus_++;
    line(depth, format("<gpu dev=\"%s\" sm=\"%d\">", xml_text(dev).c_str(), at(gpu).sm));
    for (const Graph::Edge& edge : graph_.edges) {
      if (edge.a != gpu && edge.b != gpu) continue;
      const Graph::Node& peer = at(edge.a == gpu ? edge.b : edge.a);
      const bool is_switch = peer.kind == Kind::kFabric;
      if (!is_switch && peer.kind != Kind::kGpu) continue;
      const double each = nvlink_bytes_per_second(at(gpu).sm), xgmis = edge.bytes_per_second / kXgmi;
      const double nvlinks = std::max(1.0, std::ceil(edge.bytes_per_second / each - 1e-6));
      const bool is_xgmi =
          xgmis == std::round(xgmis) && (at(gpu).sm == 0 || std::fmod(edge.bytes_per_second, each) != 0);
      line(depth + 1, format("<%s target=\"%s\" count=\"%g\" tclass=\"0x%s\"/>", is_xgmi ? "xgmi" : "nvlink",
                             xml_text(peer.bus).c_str(), is_xgmi ? xgmis : nvlinks,
                             is_switch ? "068000"
                             : is_xgmi ? "038000"
                                       : "030200"));
    }
    line(depth, "</gpu>");
  }
  // Together with all others of the same device.
  void write_nic(int place, int first, int depth) {
    std::vector<int> nets;
    for (const int node : inner_[place])
      if (at(node).kind == Kind::kNic && (node == first || (!at(node).bus.empty() && at(node).bus == at(first).bus)))
        nets.push_back(node);
    if (nets[0] != first) return;  // already written
    double most = 0;
    for (const int net : nets) most = std::max(most, speed(net));
    const bool has_bus = !at(first).bus.empty();
    if (has_bus) line(depth, "<pci busid=\"" + xml_text(at(first).bus) + "\" class=\"0x020000\"" + pci_link(most));
    line(depth + has_bus, "<nic>");
    for (const int net : nets)
      line(depth + has_bus + 1, format("<net name=\"%s\" speed=\"%.0f\"/>", xml_text(at(net).name).c_str(),
                                       std::ceil(speed(net) * 8 / 1e6 - 1e-6)));
    line(depth + has_bus, "</nic>");
    if (has_bus) line(depth, "</pci>");
  }

  const Graph& graph_;
  std::vector<int> holders_;               // each node's edge to its holder
  std::map<int, std::vector<int>> inner_;  // devices of each place, in order
  std::string text_;
  int gpus_ = 0;
};

}  // namespace

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto entity = std::find_if(std::begin(kEntities), std::end(kEntities), [&](auto& e) { return e.first == c; });
    if (entity == std::end(kEntities))
      out += c;
    else
      out += entity->second;
  }
  return out;
}

Result<Graph> graph_from_nccl_xml(std::string_view text, const std::string& file) {
  TUTTI_TRY_ASSIGN(const Element system, Reader(text, file).document());
  return Builder(file).build(system);
}

Result<std::string> nccl_xml(const Graph& graph) {
  for (const Graph::Node& node : graph.nodes)
    if (node.host != 0)
      return Error{Code::kInvalidUsage, "there are several hosts, but an NCCL topology file describes one"};
  return Writer(graph).document();
}

}  // namespace tutti
