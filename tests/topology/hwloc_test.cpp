// Golden topologies: where ranks are, and how they are ordered; files out and in.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "beside.h"
#include "catch.h"
#include "topology/layout.h"
#include "topology/machine.h"

using namespace tutti;

namespace {

using tutti_test::beside_program;

CpuSet cpus(size_t first, size_t last) {
  CpuSet set;
  for (size_t cpu = first; cpu <= last; cpu++) set[cpu] = true;
  return set;
}

Machine synthetic(const std::string& description) {
  auto machine = synthetic_machine(description);
  REQUIRE(machine);
  return std::move(machine).value();
}

Machine hybrid() {
  auto machine = read_machine(beside_program("hybrid.xml"));
  INFO((machine ? "" : machine.error().message));
  REQUIRE(machine);
  return std::move(machine).value();
}

// The layout of ranks that are bound to these CPUs of one machine.
Layout layout_of(const Machine& machine, const std::vector<CpuSet>& bound) {
  std::vector<RankLocation> locations;
  for (const CpuSet& set : bound) locations.push_back({{}, path_to(machine, set)});
  return lay_out(locations);
}

std::string place(const Machine& machine, const CpuSet& set) {
  return place_name(machine, path_to(machine, set));
}

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Folder {
  Folder() {
    char name[] = "/tmp/tutti-topology-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { [[maybe_unused]] const int rc = system(("rm -rf " + path).c_str()); }
  std::string path;
};

}  // namespace

TEST_CASE("golden: 2 sockets of 2 NUMA nodes of 8 cores") {
  const Machine m = synthetic("pack:2 numa:2 core:8 pu:1");
  CHECK(m.whole.cpus == cpus(0, 31));
  CHECK(place(m, cpus(0, 0)) == "package 0, NUMA node 0, core 0");
  CHECK(place(m, cpus(31, 31)) == "package 1, NUMA node 3, core 31");
  CHECK(place(m, cpus(8, 15)) == "package 0, NUMA node 1");
  CHECK(place(m, cpus(7, 8)) == "package 0");   // the first common ancestor of two nodes
  CHECK(place(m, cpus(15, 16)) == "anywhere");  // two sockets
  // The launcher deals ranks out node by node; they are ordered node after node.
  std::vector<CpuSet> bound;
  for (size_t rank = 0; rank < 8; rank++) bound.push_back(cpus(rank % 4 * 8 + rank / 4, rank % 4 * 8 + rank / 4));
  CHECK(to_text(layout_of(m, bound)) == "0 4 1 5 2 6 3 7");
  // Sockets outweigh nodes, and nodes outweigh cores; a rank with a wider binding comes before those inside it.
  CHECK(to_text(layout_of(m, {cpus(16, 23), cpus(24, 24), cpus(0, 15), cpus(8, 8), cpus(0, 31), cpus(20, 20),
                              cpus(0, 7)})) == "4 2 6 3 0 5 1");
}

TEST_CASE("a machine may have more CPUs than a cpu_set_t has room for") {
  const Machine m = synthetic("pack:8 core:128 pu:2");
  CHECK(m.whole.cpus == cpus(0, 2047));
  CHECK(place(m, cpus(2046, 2047)) == "NUMA node 0, package 7, core 1023");
  CHECK(cpus_from_text(to_text(cpus(1500, 2000))) == cpus(1500, 2000));
}

TEST_CASE("several memories beside the same CPUs are one node") {
  const Machine m = synthetic("pack:2 [numa(memory=2048)] [numa(memory=1024)] core:2 pu:1");
  CHECK(place(m, cpus(2, 2)) == "package 1, NUMA node 2, NUMA node 3, core 2");
  CHECK(m.whole.parts.at(1).parts.at(0).bytes == 3072);
}

TEST_CASE("golden: 64 cores without a structure keep the order of cores") {
  const Machine m = synthetic("pack:1 core:64 pu:1");
  std::vector<CpuSet> bound;
  std::string expected;
  for (size_t rank = 0; rank < 64; rank++) {
    bound.push_back(cpus(63 - rank, 63 - rank));
    expected.append(rank == 0 ? "" : " ").append(std::to_string(63 - rank));
  }
  CHECK(to_text(layout_of(m, bound)) == expected);
  CHECK(place(m, cpus(63, 63)) == "package 0, NUMA node 0, core 63");
}

TEST_CASE("golden: fast and saving cores, clusters of which share a cache") {
  const Machine m = hybrid();
  CHECK(last_level_cache_bytes(m) == 30u << 20);
  CHECK(cache_bytes(m, cpus(0, 3)) == 30u << 20);  // not the inner caches
  const std::string shared = "package 0, NUMA node 0, L3 0, ";
  CHECK(place(m, cpus(2, 3)) == shared + "L2 1, core 1");
  CHECK(place(m, cpus(3, 3)) == shared + "L2 1, core 1, CPU 3");
  CHECK(place(m, cpus(12, 12)) == shared + "L2 5, core 8");
  CHECK(place(m, cpus(8, 11)) == shared + "L2 4");
  CHECK(parts_on(m, path_to(m, cpus(12, 12))).back()->detail == "IntelAtom");
  CHECK(parts_on(m, path_to(m, cpus(2, 3))).back()->detail == "IntelCore");
  // Two CPUs of one core stay together, then clusters.
  CHECK(to_text(layout_of(m, {cpus(8, 8), cpus(0, 0), cpus(12, 12), cpus(2, 2), cpus(9, 9), cpus(1, 1)})) ==
        "1 5 3 0 4 2");
  std::string devices;
  for (const Part& part : m.whole.parts)
    if (part.kind == Part::Kind::kDevice) devices += part.name + ": " + part.details() + "\n";
  CHECK(devices == "GPU: GPU Some Vendor Some GPU, PCI 0000:01:00.0\nenp2s0: NIC, 2500 Mb/s, PCI 0000:02:00.0\n");
}

TEST_CASE("a wrong short form is an error that shows it and a right one") {
  const auto wrong = synthetic_machine("sockets:2");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().code == Code::kInvalidUsage);
  CHECK(wrong.error().message.find("'sockets:2'") != std::string::npos);
  CHECK(wrong.error().message.find("pack:2 numa:2 core:8 pu:1") != std::string::npos);
}

TEST_CASE("a topology goes out and in again") {
  const Folder folder;
  const std::string path = folder.path + "/%h.xml";
  REQUIRE(dump_machine(path));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const std::string written = folder.path + "/" + host + ".xml";
  const auto again = read_machine(written);
  REQUIRE(again);
  CHECK(again.value().whole.cpus == machine().value()->whole.cpus);
  CHECK(last_level_cache_bytes(again.value()) == last_level_cache_bytes(*machine().value()));
  CHECK(path_to(again.value(), usable_cpus()) == path_to(*machine().value(), usable_cpus()));
  CHECK(again.value().source == written);

  setenv("TUTTI_TOPO_FILE", beside_program("hybrid.xml").c_str(), 1);
  CHECK(machine().value()->whole.cpus == cpus(0, 15));
  CHECK(dump_machine(folder.path + "/copy.xml"));
  unsetenv("TUTTI_TOPO_FILE");
  CHECK(read_machine(folder.path + "/copy.xml").value().whole.cpus == cpus(0, 15));
}

TEST_CASE("TUTTI_TOPO_FILE that is missing or no topology: the error names variable, file and remedy") {
  const Folder folder;
  std::ofstream(folder.path + "/garbage.xml") << "not a topology\n";
  std::ofstream(folder.path + "/other.xml") << "<?xml version=\"1.0\"?><html><body/></html>\n";
  std::ofstream(folder.path + "/empty.xml");
  const std::string half = read_file(beside_program("hybrid.xml"));
  std::ofstream(folder.path + "/half.xml") << half.substr(0, half.size() / 2);
  for (const char* name : {"missing.xml", "garbage.xml", "other.xml", "empty.xml", "half.xml", ""}) {
    const std::string file = folder.path + "/" + name;
    INFO(file);
    setenv("TUTTI_TOPO_FILE", file.c_str(), 1);
    const auto refused = machine();
    unsetenv("TUTTI_TOPO_FILE");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kInvalidUsage);
    for (const std::string& part : {std::string("TUTTI_TOPO_FILE"), file, std::string("lstopo")})
      CHECK(refused.error().message.find(part) != std::string::npos);
  }
}

TEST_CASE("a dump that cannot be written says so, and leaves what was there") {
  const Folder folder;
  for (const std::string& path : {std::string("/dev/full"), folder.path + "/no/such/folder.xml"}) {
    const auto refused = dump_machine(path);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kSystemError);
    CHECK(refused.error().message.find(path) != std::string::npos);
    CHECK(refused.error().message.find("TUTTI_TOPO_DUMP") != std::string::npos);
  }
  CHECK(access("/dev/full", F_OK) == 0);
  std::ofstream(folder.path + "/kept.xml") << "kept";
  const auto refused = dump_machine(folder.path + "/kept.xml/below.xml");
  CHECK_FALSE(refused);
  CHECK(read_file(folder.path + "/kept.xml") == "kept");
}

TEST_CASE("a topology file in which an object has half of its sets is refused: hwloc crashes on it") {
  std::stringstream whole;
  whole << std::ifstream(beside_program("hybrid.xml")).rdbuf();
  const std::string path = "topology-" + std::to_string(getpid()) + ".xml";
  for (const char* half : {" complete_cpuset=\"", " complete_nodeset=\""}) {
    std::string xml = whole.str();
    const size_t at = xml.rfind(half), end = xml.find('"', at + std::string(half).size());
    std::ofstream(path) << xml.erase(at, end + 1 - at);
    const auto machine = read_machine(path);
    REQUIRE_FALSE(machine);
    CHECK(machine.error().message.find("an object has only one of cpuset and complete_cpuset") != std::string::npos);
  }
  unlink(path.c_str());
}
