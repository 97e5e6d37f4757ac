// tutti-soak: ranks that work, are killed, stopped, cut off and replaced for a given time, and whether they cope.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "../cli/command_line.h"
#include "report.h"

namespace tutti::soak {

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

namespace {

constexpr int kExitFailed = 1, kExitUsage = 2;
constexpr char kTraceDir[] = "TUTTI_TRACE_DIR";  // read and set: soak uses the library as any program does
volatile sig_atomic_t interrupted = 0;

int complain(const std::string& what, int status) {
  fprintf(stderr, "tutti-soak: %s\n", what.c_str());
  return status;
}

int report(const Options& options, const Board& board, const Fate& fate) {
  if (isatty(STDERR_FILENO) != 0) fprintf(stderr, "\r\033[K");
  const bool to_stdout = options.json_path == "-";
  print_report(to_stdout ? stderr : stdout, options, board, fate);
  const std::string json = options.json_path.empty() ? "" : json_text(options, board, fate);
  if (to_stdout) fputs(json.c_str(), stdout);
  // A disk may be full, which shows once everything has been written.
  if (!to_stdout && !json.empty() && !(std::ofstream(options.json_path) << json << std::flush))
    return complain("-J " + options.json_path + ": cannot be written: " + strerror(errno), kExitFailed);
  return cli::printed(failures(board, fate) == 0 ? 0 : kExitFailed, "tutti-soak");
}

// Nothing is mapped next to it: a rank that writes beyond its buffers must not change the counts.
void* shared_memory(size_t bytes) {
  constexpr size_t kApart = 64 << 20;
  bytes = (bytes + 4095) / 4096 * 4096;
  void* const all = mmap(nullptr, bytes + 2 * kApart, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* const middle = static_cast<char*>(all) + kApart;
  return mprotect(middle, bytes, PROT_READ | PROT_WRITE) == 0 ? middle : nullptr;
}

// Before there is anything that is to be removed in the end.
void catch_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (::signal(signal, [](int) { interrupted = 1; }) == SIG_IGN) ::signal(signal, SIG_IGN);  // as nohup set it
  ::signal(SIGPIPE, SIG_IGN);  // whoever reads the output may be gone
  ::signal(SIGCHLD, SIG_DFL);  // if the parent has it ignored, one is never told that a rank has ended
}

int soak(const Options& options) {
  // Fails now rather than after hours; an earlier result is overwritten.
  if (!options.json_path.empty() && options.json_path != "-" && !std::ofstream(options.json_path))
    return complain("-J " + options.json_path + ": cannot be written: " + strerror(errno), kExitUsage);
  void* const memory = shared_memory(sizeof(Board));
  if (memory == nullptr) return complain("no memory to share with the ranks", kExitFailed);
  Board& board = *new (memory) Board;
  catch_signals();
  Hosts hosts;
  if (options.hosts > 1)
    if (const std::string why = hosts.make(options.hosts); !why.empty())
      return complain("--hosts " + std::to_string(options.hosts) + ": " + why, kExitUsage);
  const char* const given = getenv(kTraceDir);
  const std::string around = given != nullptr && *given != 0 ? given : "/dev/shm";
  std::string folder = around + "/tutti-soak-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr)
    return complain("no folder can be created in " + around + ": " + strerror(errno) + "; set " + kTraceDir +
                        " to one where that is possible",
                    kExitFailed);
  setenv(kTraceDir, folder.c_str(), 1);
  setenv("TUTTI_INIT_TIMEOUT", std::to_string(kInitSeconds).c_str(), 1);
  setenv("TUTTI_LOG", "none", 0);  // errors are the purpose here
  const Fate fate = Director(options, board, hosts, folder).run([] { return interrupted != 0; });
  std::filesystem::remove_all(folder);
  return report(options, board, fate);
}

// A misspelt fault would never occur, and all would seem well.
std::string check_faults(const std::string& list) {
  const Options all;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');)
    if (!all.has(word.c_str())) return "'" + word + "' is none of " + all.faults;
  return "";
}

void add_options(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  // 30 years: 64-bit nanoseconds only reach 292.
  app.add_option("--seconds", o.seconds, "how long to run")->check(CLI::Range(1e-3, 1e9));
  app.add_option("--seed", o.seed, "random seed: operations, faults and their times");
  app.add_option("--ranks", o.ranks, "how many, one process each")->check(CLI::Range(2, kMostRanks));
  app.add_option("--hosts", o.hosts, "network namespaces to spread the ranks over; links between them are cut (root)")
      ->check(CLI::Range(1, 32));
  app.add_option("--transport", o.transports, "allowed transports in order of preference: shm,tcp");
  app.add_option("--maxbytes", o.max_bytes, "bytes of the largest operation")
      ->check(CLI::Range(uint64_t{65536}, uint64_t{1} << 30));
  app.add_option("--every", o.every_ms, "milliseconds between faults, on average")->check(CLI::Range(1, 3600000));
  app.add_option("--rest", o.rest_us, "microseconds that each rank rests after an operation")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--hang", o.hang_seconds, "seconds without progress that count as a hang")->check(CLI::Range(1, 3600));
  app.add_option("--faults", o.faults, "which: any of kill,stop,delay,leave,revoke,join,cut")->check(check_faults);
  app.add_option("-J,--output_file", o.json_path, "write JSON there ('-': stdout, and the table to stderr)");
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) {
  tutti::soak::Options options;
  CLI::App app(
      "Ranks run random operations, whose results are checked, while they are killed (up to three at once), stopped,\n"
      "delayed, cut off, revoked and replaced: those that are left shrink and carry on, new ones join and the group "
      "grows.\n"
      "Reports how soon deaths are noticed and overcome, and anything that must not happen: hangs, wrong results, "
      "leaks.");
  app.footer(
      "\nExit status: 0 good, 1 something went wrong, 2 wrong usage.\n"
      "\nExamples:\n"
      "  tutti-soak --seconds 600 --seed 7\n"
      "  tutti-soak --ranks 8 --transport tcp --every 100 -J out.json\n"
      "  sudo tutti-soak --ranks 6 --hosts 3          also cuts links\n"
      "  tutti-soak --faults stop,delay --rest 1000   no deaths, and little of the CPU\n");
  tutti::soak::add_options(app, options);
  if (const auto status = tutti::cli::parse(app, argc, argv, "tutti-soak")) return *status;
  return tutti::soak::soak(options);
}
