// tutti-topo: prints the machine, where each rank runs, the paths between ranks, the rings and trees.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "../cli/command_line.h"
#include "base/file.h"
#include "group/launcher.h"
#include "picture.h"

namespace {

int complain(const std::string& what) {
  fprintf(stderr, "tutti-topo: %s\n", what.c_str());
  return 1;
}

int misuse(const std::string& what) {
  complain(what);
  return tutti::cli::kWrongUsage;
}

// Why an option that was given would have no effect; null if all have one.
const char* misplaced(const CLI::App& app) {
  const auto has = [&](const char* option) { return app.count(option) > 0; };
  if (!has("--graph")) {
    if (has("--xml")) return "--xml writes a graph: give --graph, too, such as --graph this-host";
    if (has("--cyclic") && !has("--ranks")) return "--cyclic deals out ranks: give --ranks, too";
    return nullptr;
  }
  if (has("--svg")) return "--svg draws machines and ranks, not a graph: leave out --graph";
  if (has("--ranks") || has("--cyclic")) return "a graph has no ranks: leave out --graph, or --ranks and --cyclic";
  if (app.count("--host") > 1) return "all hosts of a graph are alike: give one --host";
  return nullptr;
}

int show_graph(const std::string& name, const std::string& host, const std::string& xml) {
  const auto graph = tutti::topo::graph_named(name, host);
  if (!graph) return complain(graph.error().message);
  const std::string text = tutti::topo::graph_text(graph.value());
  fputs(text.c_str(), stdout);
  if (const int status = tutti::cli::printed(0, "tutti-topo"); status != 0 || xml.empty()) return status;
  const auto written = tutti::nccl_xml(graph.value());
  if (!written) return complain("--xml: " + name + ": " + written.error().message);
  const auto done = tutti::write_file(xml, written.value());
  return done ? 0 : complain("--xml " + xml + " cannot be written: " + strerror(done.error().sys_errno));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Prints the machine and, for a group of ranks, where each one runs, the paths between them, rings and trees.\n"
      "Under a launcher (mpirun -np 4 tutti-topo) the group is the job; --ranks simulates one.");
  tutti::topo::Invented wish;
  std::string svg, graph, xml;
  app.add_option(
      "--host", wish.hosts,
      "a host to simulate, repeat for more: a file from TUTTI_TOPO_DUMP or lstopo, or hwloc's short form such as "
      "'pack:2 numa:2 core:8 pu:1'; none: this machine");
  app.add_option("--ranks", wish.ranks_per_host,
                 "ranks to simulate on each host, bound to its cores one after the other")
      ->check(CLI::Range(0, 65536));
  app.add_flag("--cyclic", wish.cyclic, "deal the ranks out to the hosts in turn, not host after host");
  app.add_option(
      "--graph", graph,
      "print the best ring of this graph instead: a topology file of NCCL's, what --host takes, this-host, or "
      "a cluster's .json (see tools/sim), each of whose hosts is like the one --host");
  app.add_option("--xml", xml, "also write the graph into this file, as NCCL reads it with NCCL_TOPO_FILE");
  app.add_option("--svg", svg, "also draw it into this SVG file");
  if (const auto status = tutti::cli::parse(app, argc, argv, "tutti-topo")) return *status;

  if (const char* const why = misplaced(app)) return misuse(why);
  const bool makes_up = !wish.hosts.empty() || wish.ranks_per_host > 0;
  const auto launched = tutti::detect_launcher();
  // What needs no job is shown once, or if it is of this host, once on each, not by each process.
  const bool is_of_host = graph == "this-host" || (graph.empty() && wish.hosts.empty());
  if ((makes_up || !graph.empty()) && launched) {
    const auto& place = launched.value();
    if ((is_of_host && place.local_rank >= 0 ? place.local_rank : place.rank) != 0) return 0;
  }
  if (!graph.empty()) return show_graph(graph, wish.hosts.empty() ? "" : wish.hosts[0], xml);

  if (wish.hosts.empty()) wish.hosts.push_back("");
  int rank = 0;
  if (!makes_up && !launched && tutti::has_rank_of_launcher())
    fprintf(stderr, "tutti-topo: showing this host alone, not the job: %s\n", launched.error().message.c_str());
  const auto picture =
      !makes_up && launched ? tutti::topo::picture_of_group(&rank) : tutti::topo::invented_picture(wish);
  if (!picture) return complain(picture.error().message);
  if (rank != 0) return 0;
  fputs(tutti::topo::to_text(picture.value()).c_str(), stdout);
  if (const int status = tutti::cli::printed(0, "tutti-topo"); status != 0 || svg.empty()) return status;
  const auto drawn = tutti::write_file(svg, tutti::topo::to_svg(picture.value()));
  return drawn ? 0 : complain("--svg " + svg + " cannot be written: " + strerror(drawn.error().sys_errno));
}
