/* MPI_Allreduce timed the way all_reduce_perf times Tutti: barrier, warm-up, then `iters` operations back to back; the
 * slowest rank counts; the result is checked before. Prints "bytes microseconds wrong" per size. float, sum.
 *   mpirun -np N mpi_all_reduce ITERS BYTES... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static long count_wrong(const float* data, size_t count, int ranks) {
  long wrong = 0;
  for (size_t i = 0; i < count; i++) wrong += data[i] != (float)(i % 1021) * ranks + 3.0f * ranks * (ranks - 1) / 2;
  return wrong;
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int iters = argc > 1 ? atoi(argv[1]) : 20;
  for (int a = 2; a < argc; a++) {
    const size_t bytes = strtoull(argv[a], NULL, 10), count = bytes / sizeof(float);
    float* in = malloc(bytes + 1);
    float* out = malloc(bytes + 1);
    if (in == NULL || out == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i < count; i++) in[i] = (float)(i % 1021) + 3.0f * (float)rank;
    MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    long wrong = count_wrong(out, count, ranks), all_wrong = 0;
    const int n = bytes < 65536 ? iters * 50 : iters;
    for (int i = 0; i < n / 10 + 1; i++) MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < n; i++) MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double seconds = (MPI_Wtime() - start) / n, slowest = 0;
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%zu %.3f %ld\n", bytes, slowest * 1e6, all_wrong);
    free(in);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
