// replay [--runs N] [--seed S] [--write FOLDER] [FILE...]: gives a target its seeds, then N mutations of them, always
// the same ones for the same S; or only the files. --write puts the seeds into a folder, for libFuzzer. The current
// input is in a file, whose name is printed first and which a crash leaves behind.
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) {
  return static_cast<size_t>(random() % n);
}

// A value that is more often than not an edge case.
char interesting(Random& random) {
  constexpr char kEdges[] = {0, 1, 2, 4, 8, 16, 32, 64, 100, 127, '\x80', '\xc0', '\xfe', '\xff'};
  return below(random, 3) == 0 ? static_cast<char>(random()) : kEdges[below(random, sizeof kEdges)];
}

void change(std::string& input, const std::string& other, Random& random) {
  const size_t at = below(random, input.size() + 1), bytes = 1 + below(random, 8);
  switch (below(random, 8)) {
    case 0: input.insert(at, 1, interesting(random)); break;
    case 1: input.erase(at, bytes); break;
    case 2: input.resize(at); break;
    case 3: input.insert(at, input.substr(below(random, input.size() + 1), 4 * bytes)); break;
    case 4: input.insert(at, other.substr(below(random, other.size() + 1), 16 * bytes)); break;
    case 5:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ 1 << below(random, 8));
      break;
    case 6: input.replace(at, bytes, std::string(bytes, interesting(random))); break;
    default:
      if (at < input.size()) input[at] = interesting(random);
  }
}

std::string mutated(const std::vector<std::string>& seeds, Random& random) {
  std::string input = seeds[below(random, seeds.size())];
  for (size_t n = 1 + below(random, 6); n > 0; n--) change(input, seeds[below(random, seeds.size())], random);
  return input;
}

class Journal {
 public:
  Journal() : path_("/tmp/fuzz-input-" + std::to_string(getpid())) {
    printf("the input in progress is in %s\n", path_.c_str());
    fflush(stdout);
  }
  ~Journal() { unlink(path_.c_str()); }
  void run(const std::string& input) {
    std::ofstream(path_, std::ios::binary) << input;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    runs_++;
  }
  size_t runs() const { return runs_; }

 private:
  std::string path_;
  size_t runs_ = 0;
};

int write_seeds(const std::string& folder) {
  const std::vector<std::string> seeds = fuzz_seeds();
  for (size_t i = 0; i < seeds.size(); i++) {
    std::ofstream out(folder + "/seed-" + std::to_string(i), std::ios::binary);
    if (!(out << seeds[i])) {
      fprintf(stderr, "%s cannot be written to: give a folder that is there\n", folder.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  size_t mutations = 1000;
  uint64_t seed = 1;
  std::vector<std::string> files;
  for (int i = 1; i < argc; i++) {
    const std::string argument = argv[i];
    if (argument == "--write" && i + 1 < argc) return write_seeds(argv[i + 1]);
    if (argument == "--runs" && i + 1 < argc)
      mutations = strtoull(argv[++i], nullptr, 10);
    else if (argument == "--seed" && i + 1 < argc)
      seed = strtoull(argv[++i], nullptr, 10);
    else
      files.push_back(argument);
  }
  Journal journal;
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    journal.run({std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
  }
  if (files.empty()) {
    const std::vector<std::string> seeds = fuzz_seeds();
    for (const std::string& input : seeds) journal.run(input);
    for (size_t i = 0; i < mutations; i++) {
      Random random(seed + (i << 20));  // an input depends only on its number
      journal.run(mutated(seeds, random));
    }
  }
  printf("%zu inputs\n", journal.runs());
  return 0;
}
