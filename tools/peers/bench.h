// The same timing for Tutti, its peers and the floors, so that only the library differs. Every program here is this
// driver and a Library.
//
// For each size: the result is checked element by element; operations are repeated for half a second or 5000 times, but
// at least 100 times, as a warm-up that is the same for every library; three batches are timed; the result is checked
// again. A batch begins with the library's barrier and then one in a page that the ranks share, so that they start
// within a microsecond, whatever the library's barrier is like. A time is that of the slowest rank, divided by the
// number of operations. Batches are as long as their time allows, up to 100000 operations; with --row they have that
// many operations, and there are as many batches as fit, from 3 to 30.
//
//   reused  operations back to back on the same buffers
//   fresh   before each operation the input is rewritten and all ranks meet; after it all of the output is read and
//           compared. Only the operation is timed. This is how an application uses a collective. Reading the clock
//           adds some 0.03 us.
//
// Rank 0 prints "MODE BYTES OPERATIONS MICROSECONDS BEFORE AFTER" for each batch, the last two being
// Meet::exchange_us(). A wrong element ends the program with status 1.
//
// Where every rank can have its own core, the calling thread is pinned to one once the library is ready, so that other
// processes on the machine disturb all ranks alike. Threads that the library made before may run anywhere.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "meet.h"

namespace bench {

// `bytes` is the size as nccl-tests defines it: all-gather's whole output, reduce-scatter's whole input, everything
// that a rank of an all-to-all sends.
enum class Op {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kReduce,
  kAllToAll,
  // What the hardware can do; for the floors only.
  kCopy,       // each rank copies its input to its output
  kRoundTrip,  // rank 0's input goes to rank 1 and back
  kBarrier,    // no data
};

struct Settings {
  Op op = Op::kAllReduce;
  std::vector<size_t> sizes_bytes;
  bool reused = true;
  bool fresh = false;
  double seconds = 0.15;  // for all timed operations of one size and mode together
  long row = 0;           // operations in a batch; 0: as many as fill the time
  long warm_up = 5000;    // operations before, if half a second is enough for that many
  int n_ranks = 2;
  bool bound = true;      // each rank to its own core, if there are enough
  std::string meet;       // a file that all ranks map; before the run it must not exist, or hold zeros
  std::string transport;  // shm or tcp, for libraries that leave the choice to the caller
  std::string variant;    // its meaning depends on the library
  std::string network;    // rank r is on the host "NETWORK-(r+1)", a network namespace; "": all ranks are on this host
  // Which library must have been loaded: the path of libtutti.so, or a part of an MPI's version. Programs find their
  // libraries through the environment, and a program with the wrong one would be measured under a false name.
  std::string expect;
};

// Parses "--name value" pairs. Ends the process with a message if they are wrong.
Settings parse(int argc, char** argv);

// A library under test, on one rank. All elements are 32-bit floats, reductions are sums, the root is rank 0. An
// operation returns when the output is there. Operations that a library does not have are left out.
class Library {
 public:
  virtual ~Library() = default;
  virtual void barrier() = 0;
  virtual void all_reduce(const float* in, float* out, size_t elems);
  virtual void broadcast(float* data, size_t elems);
  virtual void all_gather(const float* in, float* out, size_t elems_per_rank);
  virtual void reduce_scatter(const float* in, float* out, size_t elems_per_rank);
  virtual void reduce(const float* in, float* out, size_t elems);  // to rank 0, the only rank whose output is used
  virtual void all_to_all(const float* in, float* out, size_t elems_per_rank);
  virtual void copy(const float* in, float* out, size_t elems);
  virtual void round_trip(const float* in, float* out, size_t elems);
  // Whether the calling thread does the work. If the library's threads do, pinning that thread would hinder them.
  virtual bool works_on_caller() const { return true; }
  // Page-aligned memory, zeroed, never freed: a program has two buffers.
  virtual float* allocate(size_t bytes);
};

// Times everything that the settings ask for and prints it.
void measure(Library& library, Meet& meet, const Settings& settings);

// The interface by which hosts (settings.network) reach each other.
constexpr const char* kInterface = "nic1";
// Moves the calling thread to the rank's host, before it makes a thread or a socket.
void enter_host(const Settings& settings, int rank);

// Forks the ranks, each on its host, and runs `body` on each. Returns the program's exit status. If one rank fails, the
// others are killed.
int run_forked(const Settings& settings, const std::function<void(int rank)>& body);

// Prints the message and ends this process with status 1.
[[noreturn]] void fail(const std::string& message);

}  // namespace bench
