#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "collectives.h"
#include "launch.h"
#include "memory.h"
#include "options.h"
#include "run.h"
#include "tensors.h"

namespace tutti::perf {
namespace {

// If a standard stream is closed the next socket gets its number, and the table would go there.
Status check_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (fd == STDOUT_FILENO) return Error{"stdout is closed; redirect it to a file or /dev/null"};
    if (open("/dev/null", O_RDWR) < 0) return Error{"/dev/null cannot be opened"};
  }
  return {};
}

// Linux promises more memory than there is and kills a process later; it is better to fail now.
Status check_memory(const Options& options, const Collective& collective, const std::vector<Tensor>& tensors) {
  const int ranks = local_ranks(options);
  const auto each = static_cast<double>(buffer_bytes(options, collective, tensors, ranks));
  const double have = available_bytes();
  if (have == 0 || each * ranks <= have) return {};
  return Error{
      text("%d rank(s) need buffers of %.0f bytes (%s), of which this machine, or its container, has %s; make the "
           "largest size (-e) smaller",
           ranks, each * ranks, human_bytes(each * ranks).c_str(), human_bytes(have).c_str())};
}

Status prepare(int argc, char** argv, const Collective& collective, Options* options, std::vector<Tensor>* tensors) {
  if (Status s = check_streams(); !s) return s;
  if (Status s = parse_options(argc, argv, collective, options); !s || !options->help.empty()) return s;
  if (!options->sizes_from.empty()) {
    if (Status s = load_tensors(options->sizes_from, tensors); !s) return s;
  }
  return check_memory(*options, collective, *tensors);
}

// One program for all collectives: the name that it is called by, without its folder, says which, and becomes `tool`.
Collective measured_by(const char* called) {
  const char* const slash = strrchr(called, '/');
  const char* const name = slash != nullptr ? slash + 1 : called;
  std::string tool = name;
  std::replace(tool.begin(), tool.end(), '-', '_');
  if (tool.rfind("tutti_", 0) == 0) tool.erase(0, 6);  // its installed name
  for (const Collective* one : {&kAllGather, &kAllReduceQuantized, &kAlltoAll, &kAlltoAllv, &kBarrier, &kBroadcast,
                                &kGather, &kReduce, &kReduceScatter, &kScatter, &kSendRecv}) {
    if (tool != one->tool) continue;
    Collective collective = *one;
    collective.tool = name;
    return collective;
  }
  Collective collective = kAllReduce;
  if (tool == collective.tool) collective.tool = name;
  return collective;
}

int perf_main(int argc, char** argv) {
  const Collective collective = measured_by(argc > 0 ? argv[0] : "");
  Options options;
  std::vector<Tensor> tensors;
  if (Status s = prepare(argc, argv, collective, &options, &tensors); !s) {
    fprintf(stderr, "%s: %s\n", collective.tool, s.error().message.c_str());
    return s.error().exit_status;
  }
  if (!options.help.empty()) {
    const bool printed = fputs(options.help.c_str(), stdout) >= 0 && fflush(stdout) == 0;
    return printed ? 0 : kExitFailed;
  }
  const double start_bytes = resident_bytes();
  return launch(options, collective.tool,
                [&](tuttiComm_t comm) { return run_rank(options, collective, tensors, comm, start_bytes); });
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv);
}
