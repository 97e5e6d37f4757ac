#include "real_kernels.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "../../beside.h"
#include "../fake.h"
#include "launch.h"

namespace tutti_test::ptx {
namespace {

void print_counts() {
  size_t n = 0, lines = 0, lines_run = 0;
  for (const auto& kernel : real_module().kernels) {
    n += kernel->lines_run() > 0;
    lines += kernel->code.size();
    lines_run += kernel->lines_run();
  }
  printf("PTX: kernels run %zu of %zu, lines run %zu of %zu (%.2f %%)\n", n, real_module().kernels.size(), lines_run,
         lines, 100.0 * static_cast<double>(lines_run) / static_cast<double>(lines));
  if (getenv("TUTTI_TEST_PTX_MISSED") == nullptr) return;
  for (const auto& kernel : real_module().kernels)
    for (size_t i = 0; i < kernel->code.size(); i++)
      if (kernel->was_run[i] == 0)
        printf("%s:%u %s\n", kernel->name.c_str(), kernel->code[i].line, kernel->text[i].c_str());
}

class RealKernels final : public Kernels {
 public:
  RealKernels() { use_kernels(this); }
  bool are_interpreted() const override { return true; }
  void run(const tutti::cuda::JobList& list) override { check(ptx::run(grid_of(real_module(), list).get(), false)); }
  void run(const tutti::cuda::ProgramCall& call) override { check(ptx::run(real_module(), call)); }
  void run(const tutti::cuda::LineCall& call) override { check(ptx::run(real_module(), call)); }
  void run(const tutti::cuda::SpanCall& call, uint32_t n_blocks) override {
    check(ptx::run(real_module(), call, n_blocks));
  }
  void run(const tutti::cuda::FactorCall& call, uint32_t n_blocks) override {
    check(ptx::run(real_module(), call, n_blocks));
  }

 private:
  // As on a GPU, a fault ends everything.
  static void check(const std::string& fault) {
    if (fault.empty()) return;
    fprintf(stderr, "a kernel failed: %s\n", fault.c_str());
    abort();
  }
};

RealKernels g_real_kernels;

}  // namespace

const Module& real_module() {
  static const Module* const module = [] {
    auto* made = new Module;
    for (const char* name : {"gradients", "jobs", "lines", "program"})
      made->add_file(tutti_test::beside_program(std::string(name) + ".ptx"));
    atexit(print_counts);  // not earlier: at exit the files cannot be read any more
    return made;
  }();
  return *module;
}

std::string real_text(const std::string& file, const std::string& kernel) {
  std::ifstream stream(tutti_test::beside_program(file + ".ptx"));
  std::stringstream all;
  all << stream.rdbuf();
  const std::string text = all.str(), end = "\n}\n";
  for (size_t at = text.find(".entry "); at != std::string::npos; at = text.find(".entry ", at + 1))
    if (text.substr(at, text.find('(', at) - at).find(kernel) != std::string::npos)
      return text.substr(at, text.find(end, at) + end.size() - at);
  return "";
}

}  // namespace tutti_test::ptx
