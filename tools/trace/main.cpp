// tutti-trace: what the ranks of a job are doing, why it hangs, and pictures of what they did.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <set>

#include "../cli/command_line.h"
#include "base/env.h"
#include "base/fd.h"
#include "base/file.h"
#include "debug/lateness.h"
#include "debug/trace_files.h"
#include "debug/trace_json.h"
#include "debug/why.h"
#include "merge.h"

namespace {

using namespace tutti;  // NOLINT: a program's file

int complain(const std::string& what) {
  fprintf(stderr, "tutti-trace: %s\n", what.c_str());
  return 1;
}

std::string process_text(char state) {
  switch (state) {
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "in I/O";
    case 'T':
    case 't': return "stopped";
    case 'X':
    case 'Z': return "gone";
    default: return "not seen";
  }
}

void show_group(const Witnesses& ranks) {
  const Trace& any = ranks.begin()->second.trace;
  printf("group %016llx: %s, %zu of %d ranks on %s\n", static_cast<unsigned long long>(any.group), any.program.c_str(),
         ranks.size(), any.n_ranks, any.host.c_str());
  for (const auto& [rank, witness] : ranks) {
    const Trace& trace = witness.trace;
    std::string waits;
    // Several messages may come from one rank.
    for (const int awaited : std::set(trace.wait.awaited.begin(), trace.wait.awaited.end()))
      waits += (waits.empty() ? "; waits for rank " : ", ") + std::to_string(awaited);
    printf("  rank %-4d pid %-8d %-8s %s%s\n", rank, trace.process.pid, process_text(witness.process_state).c_str(),
           place_in_order(trace).c_str(), waits.c_str());
    if (trace.has_failed()) printf("    %s\n", trace.error.c_str());
  }
  const bool waits =
      std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return !r.second.trace.wait.found.empty(); });
  if (waits) printf("  %s\n", why(ranks).c_str());  // for ranks on other hosts
}

// The groups of the process, or all groups.
std::map<uint64_t, Witnesses> chosen_groups(const std::string& folder, int pid) {
  auto groups = find_witnesses(folder, true);
  std::erase_if(groups, [&](const auto& group) {
    return pid != 0 && std::none_of(group.second.begin(), group.second.end(),
                                    [&](const auto& rank) { return rank.second.trace.process.pid == pid; });
  });
  return groups;
}

int none_found(const std::string& folder, int pid) {
  if (const size_t others = find_witnesses(folder, true).size(); others > 0)
    return complain(format("process %d is in none of the %zu groups with files in %s: tutti-trace show lists them", pid,
                           others, folder.c_str()));
  return complain(
      "no communicator has a file in " + folder +
      ": the job has ended, or runs on another host, as another user or with another TUTTI_TRACE_DIR (--dir)");
}

int show(const std::string& folder, int pid) {
  const auto groups = chosen_groups(folder, pid);
  if (groups.empty()) return none_found(folder, pid);
  for (const auto& [number, ranks] : groups) show_group(ranks);
  return 0;
}

int explain(const std::string& folder, int pid) {
  const auto groups = chosen_groups(folder, pid);
  if (groups.empty()) return none_found(folder, pid);
  for (const auto& [number, ranks] : groups) {
    if (groups.size() > 1) printf("group %016llx: ", static_cast<unsigned long long>(number));
    printf("%s\n", why(ranks).c_str());
  }
  return 0;
}

void print_late(const std::string& group, const StragglerDetector& roll) {
  printf("group %s: which ranks were late for operations\n", group.c_str());
  printf("  rank  operations  late   total s   worst ms  waited for it, s\n");
  for (const auto& [rank, r] : roll.ranks())
    printf("  %-4d  %10llu  %4llu  %8.3f  %9.1f  %16.3f\n", rank, static_cast<unsigned long long>(r.operations),
           static_cast<unsigned long long>(r.late), static_cast<double>(r.late_ns) / 1e9,
           static_cast<double>(r.worst_ns) / 1e6, static_cast<double>(r.waited_ns) / 1e9);
  printf("%s\n", roll.sentence().value_or("no rank was a millisecond or more late for them").c_str());
}

// Who is stopped or gone would keep its asker waiting.
bool can_answer(const std::string& trace_file) {
  const auto maker = maker_of(trace_file.substr(trace_file.rfind('/') + 1));
  return maker && std::string("TtXZ").find(process_state(*maker)) == std::string::npos;
}

// Ranks of other hosts cannot be seen from here, so a rank of this host asks them.
std::optional<std::string> lateness_everywhere(const std::string& folder, uint64_t group) {
  for (const std::string& path : trace_files(folder)) {
    if (!can_answer(path)) continue;
    const auto file = TraceFile::open(path);
    if (!file || file.value().header().group != group) continue;
    const TraceHeader& header = file.value().header();
    const uint64_t mine = header.lateness_asked.load() + 1;
    const Fd asks(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!asks || pwrite(asks.get(), &mine, sizeof mine, offsetof(TraceHeader, lateness_asked)) != sizeof mine) continue;
    for (int i = 0; i < 100; i++) {
      usleep(20'000);
      if (header.lateness_answered.load(std::memory_order_acquire) == mine)
        return std::string(header.lateness, strnlen(header.lateness, sizeof header.lateness));
    }
  }
  return {};
}

int late(const std::string& folder, int pid) {
  const auto groups = chosen_groups(folder, pid);
  if (groups.empty()) return none_found(folder, pid);
  for (const auto& [number, ranks] : groups) {
    StragglerDetector roll;
    for (const auto& [rank, witness] : ranks) roll.enter(rank, AttendanceReader().follow(witness.trace));
    roll.compare();
    print_late(format("%016llx", static_cast<unsigned long long>(number)), roll);
    if (static_cast<int>(ranks.size()) == ranks.begin()->second.trace.n_ranks) continue;
    const auto everywhere = lateness_everywhere(folder, number);
    printf("with the ranks of other hosts: %s\n",
           everywhere.value_or("unknown: no rank here answers; all are stopped or have ended").c_str());
  }
  return 0;
}

int late(const std::vector<std::string>& files) {
  std::vector<trace::Dump> dumps;
  for (const std::string& file : files) {
    auto read = trace::read_dump(file);
    if (!read) return complain(read.error().message);
    dumps.push_back(std::move(read).value());
  }
  for (const auto& [group, roll] : trace::roll_calls(dumps)) print_late(group, roll);
  return 0;
}

int dump(const std::string& folder, int pid, const std::string& pattern) {
  const auto groups = chosen_groups(folder, pid);
  if (groups.empty()) return none_found(folder, pid);
  std::set<std::string> paths;
  for (const auto& [number, ranks] : groups)
    for (const auto& [rank, witness] : ranks) {
      const std::string path = trace_path(pattern, witness.trace);
      if (!paths.insert(path).second)
        return complain("-o " + pattern + ": several ranks would write the file " + path +
                        "; name it by rank (%r) and group (%g), or give --pid");
      const auto written = write_trace(witness.trace, pattern);
      if (!written) return complain(written.error().message);
      printf("%s\n", written.value().c_str());
    }
  return 0;
}

int merge(const std::vector<std::string>& files, const std::string& out) {
  std::vector<trace::Dump> dumps;
  for (const std::string& file : files) {
    auto read = trace::read_dump(file);
    if (!read) return complain(read.error().message);
    dumps.push_back(std::move(read).value());
  }
  std::sort(dumps.begin(), dumps.end(), [](const trace::Dump& a, const trace::Dump& b) {
    return std::tie(a.group, a.rank) < std::tie(b.group, b.rank);
  });
  for (const auto& [path, text] :
       {std::pair(out + ".json", trace::perfetto_text(dumps)), std::pair(out + ".html", trace::html_page(dumps))}) {
    if (const auto written = write_file(path, text); !written) return complain(written.error().message);
    printf("%s\n", path.c_str());
  }
  return 0;
}

int to_torch(const std::vector<std::string>& files, const std::string& prefix) {
  std::set<std::string> paths;
  for (const std::string& file : files) {
    const auto read = trace::read_dump(file);
    if (!read) return complain(read.error().message);
    const std::string path = prefix + std::to_string(read.value().rank);
    if (!paths.insert(path).second)
      return complain(file + " is a second file of rank " + std::to_string(read.value().rank) +
                      ": give each file of one group once");
    if (const auto written = write_file(path, trace::pickle(read.value().json)); !written)
      return complain(written.error().message);
    printf("%s\n", path.c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Shows what the ranks of a job on this host do, or did before they were killed, and why they hang.\n"
      "Across hosts: tuttiDumpTrace, TUTTI_TRACE_FILE or `tutti-trace dump` on each, then merge.");
  app.require_subcommand(1);
  std::string folder = env_string("TUTTI_TRACE_DIR"), pattern = "tutti-trace-%g-%r.json", out = "tutti-trace",
              prefix = "tutti_trace_";
  std::vector<std::string> files;
  int pid = 0;
  const auto live = [&](const char* name, const char* help) {
    CLI::App* const command = app.add_subcommand(name, help);
    command->add_option("--dir", folder, "folder of the communicators' files; default: TUTTI_TRACE_DIR or /dev/shm");
    command->add_option("--pid", pid, "only groups that this process is in");
    return command;
  };
  live("show", "each rank's operation, since when, and whom it waits for");
  live("why", "one sentence: who waits for whom, and which rank is the cause");
  live("late", "which ranks were late for operations, and how long the others waited for them")
      ->add_option("files", files, "of `tutti-trace dump`, also of several hosts, instead of live ranks");
  live("dump", "writes each rank's last operations as JSON")
      ->add_option("-o", pattern, "the files' names: %r becomes the rank, %p the process, %h the host, %g the group")
      ->capture_default_str();
  const auto made_of_files = [&](const char* name, const char* help) {
    CLI::App* const command = app.add_subcommand(name, help);
    command->add_option("files", files, "of tuttiDumpTrace, TUTTI_TRACE_FILE or `tutti-trace dump`")->required();
    return command;
  };
  made_of_files("merge", "several ranks' files as one timeline: OUT.html to look at, OUT.json for Perfetto")
      ->add_option("-o", out, "OUT")
      ->capture_default_str();
  made_of_files("torch",
                "one group's files for PyTorch's analyser: python -m torch.distributed.flight_recorder.fr_trace")
      ->add_option("-o", prefix, "the files' names up to the rank")
      ->capture_default_str();
  if (const auto status = cli::parse(app, argc, argv, "tutti-trace")) return *status;
  const CLI::App& given = *app.get_subcommands()[0];
  const std::string command = given.get_name();
  if (command == "late" && !files.empty() && given.count("--dir") + given.count("--pid") > 0) {
    complain("late: --dir and --pid are of live ranks, not of files: leave out one or the other");
    return cli::kWrongUsage;
  }
  const auto run = [&] {
    if (command == "show") return show(folder, pid);
    if (command == "why") return explain(folder, pid);
    if (command == "late") return files.empty() ? late(folder, pid) : late(files);
    if (command == "dump") return dump(folder, pid, pattern);
    return command == "merge" ? merge(files, out) : to_torch(files, prefix);
  };
  return cli::printed(run(), "tutti-trace");
}
