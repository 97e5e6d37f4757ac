// An MPI under the driver of bench.h: compiled once for each, started by its launcher, told by launcher and environment
// what transport and algorithm to use.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

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
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const bench::Settings settings = bench::parse(argc, argv);
  int rank = 0, n_ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
  if (n_ranks != settings.n_ranks) bench::fail("the launcher started " + std::to_string(n_ranks) + " ranks");
  bench::Meet meet(settings.meet, rank, n_ranks);
  Mpi mpi;
  bench::measure(mpi, meet, settings);
  // MPICH over TCP sometimes hangs in here; all has been printed by then.
  signal(SIGALRM, [](int) { _exit(0); });
  alarm(5);
  MPI_Finalize();
  return 0;
}
