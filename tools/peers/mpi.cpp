// An MPI under the driver of bench.h: compiled once for each MPI and started by its launcher, which selects transport
// and algorithm together with the environment. --expect "Open MPI v5", for example: how the version text must begin.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "bench.h"

namespace {

// A failed call ends the program: that is MPI's default for errors.
class Mpi : public bench::Library {
 public:
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void all_reduce(const float* in, float* out, size_t elems) override {
    MPI_Allreduce(in, out, static_cast<int>(elems), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void broadcast(float* data, size_t elems) override {
    MPI_Bcast(data, static_cast<int>(elems), MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
  void all_gather(const float* in, float* out, size_t elems_per_rank) override {
    const int count = static_cast<int>(elems_per_rank);
    MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD);
  }
  void reduce_scatter(const float* in, float* out, size_t elems_per_rank) override {
    const int count = static_cast<int>(elems_per_rank);
    MPI_Reduce_scatter_block(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void reduce(const float* in, float* out, size_t elems) override {
    MPI_Reduce(in, out, static_cast<int>(elems), MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  }
  void all_to_all(const float* in, float* out, size_t elems_per_rank) override {
    const int count = static_cast<int>(elems_per_rank);
    MPI_Alltoall(in, count, MPI_FLOAT, out, count, MPI_FLOAT, MPI_COMM_WORLD);
  }
};

// One program runs with several MPIs' libraries: only here is it known which one was loaded.
void require_library(const std::string& beginning) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  std::istringstream words(version);
  std::string said;
  for (std::string word; words >> word;) said += (said.empty() ? "" : " ") + word;
  if (!said.starts_with(beginning)) bench::fail("would measure '" + said.substr(0, 40) + "' instead of " + beginning);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Settings settings = bench::parse(argc, argv);
  // Hydra's ranks talk to it over a descriptor, on any host; Open MPI starts its ranks on their hosts itself.
  if (const char* const hydras_rank = getenv("PMI_RANK")) bench::enter_host(settings, atoi(hydras_rank));
  MPI_Init(&argc, &argv);
  require_library(settings.expect);
  int rank = 0, n_ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
  if (n_ranks != settings.n_ranks) bench::fail("the launcher started " + std::to_string(n_ranks) + " ranks");
  bench::Meet meet(settings.meet, rank, n_ranks);
  Mpi mpi;
  bench::measure(mpi, meet, settings);
  // MPICH over TCP sometimes hangs in here; everything has been printed by then.
  signal(SIGALRM, [](int) { _exit(0); });
  alarm(5);
  MPI_Finalize();
  return 0;
}
