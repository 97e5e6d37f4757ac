// Where gradients lie, and the operations on them there: the host's memory, or a CUDA device.
//
// Operations take their turn in one of two queues: the caller's, in which gradients are computed and used, and the
// averager's own, in which they are averaged. On a GPU these are streams, and only synchronize() waits for them; on the
// host everything is done when a call returns.
//
// Threads: begin_bucket, end_bucket, look and what a hook does on the averager's own thread; all others one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "status.h"

namespace tutti::ddp {

enum class Queue : uint8_t { kCaller, kOwn };

// Contiguous elements.
struct Span {
  void* at = nullptr;
  size_t count = 0;
  tuttiDataType_t type = tuttiFloat32;
};

// What look() finds out about elements.
enum class Look : uint8_t {
  kNonFinite,  // the index of the first Inf or NaN, or kNoIndex
  kDigest      // a hash of the bytes
};
inline constexpr uint64_t kNoIndex = ~uint64_t{0};

// A matrix that is compressed. It is stored by rows, P and Q by columns; `start` is the initial Q of the next step.
struct Factors {
  float *data, *error, *start, *p, *q;
  size_t rows, columns, rank;
};
// PowerSGD between the averages of P and Q, see power_sgd.cpp.
enum class FactorStep : uint8_t {
  kProject,  // error += data; P = error * start
  kFindQ,    // P's columns become orthonormal; Q = error^T P
  kRebuild   // data = P Q^T; error -= data; start = Q's columns, normalised, except zero ones
};

// In seconds: the last step whose times are known, and the total of all steps.
struct Times {
  struct Sum {
    double backward = 0, comm = 0, exposed = 0;
  };
  Sum last, total;
  void add(const Sum& step) {
    last = step;
    total.backward += step.backward;
    total.comm += step.comm;
    total.exposed += step.exposed;
  }
};

class Device {
 public:
  Device(int number, tuttiComm_t comm) : number_(number), comm_(comm) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }  // TUTTI_DDP_HOST, or the CUDA device's number
  // For operations on this device's memory.
  tuttiComm_t comm() const { return comm_; }
  virtual tuttiStream_t stream(Queue queue) const = 0;
  // Sets the caller's queue.
  virtual Status set_stream(tuttiStream_t stream) = 0;

  // Zeroed memory that operations need not copy; freed when nothing uses it any more.
  virtual Status allocate(void** at, size_t bytes) = 0;
  virtual void free(void* at) = 0;

  // Either may be in the host's memory, which must then live until synchronize().
  virtual Status copy(void* to, const void* from, size_t bytes, Queue queue) = 0;
  virtual Status zero(void* at, size_t bytes) = 0;  // in the caller's queue
  virtual Status look(Look what, const std::vector<Span>& spans, Queue queue, uint64_t* found) = 0;
  // In the averager's own queue: 32- and 64-bit floats to 16 bits, or back.
  virtual Status convert(const Span& from, const Span& to) = 0;
  virtual Status factor(FactorStep step, const std::vector<Factors>& matrices) = 0;

  // In a step, what the caller's queue does before mark_filled(b) comes before what the own queue does after
  // begin_bucket(b), and what the own queue does before end_step() comes before what the caller's does after it.
  // end_backward() only takes the time.
  virtual Status begin_step(size_t n_buckets) = 0;
  virtual Status begin_backward() = 0;
  virtual Status mark_filled(size_t bucket) = 0;
  virtual Status end_backward() = 0;
  virtual Status begin_bucket(size_t bucket) = 0;
  virtual Status end_bucket(size_t bucket) = 0;
  virtual Status end_step() = 0;

  // Waits for both queues; then look()'s results have been written, and memory may be freed.
  virtual Status synchronize() = 0;
  virtual Times times() = 0;

 private:
  const int number_;
  const tuttiComm_t comm_;
};

// Owned memory of a device.
class Memory {
 public:
  // The new memory is zeroed; any held before is freed.
  Status allocate(Device& device, size_t bytes) {
    at_.reset();
    void* at = nullptr;
    Status allocated = bytes == 0 ? Status() : device.allocate(&at, bytes);
    at_ = std::unique_ptr<char, Free>(static_cast<char*>(at), {&device, bytes});
    return allocated;
  }
  // Ensures at least n bytes, with any content.
  Status reserve(Device& device, size_t n) { return n <= bytes() ? Status() : allocate(device, n); }

  char* data() const { return at_.get(); }
  size_t bytes() const { return at_ ? at_.get_deleter().bytes : 0; }

 private:
  struct Free {
    Device* device;
    size_t bytes;
    void operator()(char* at) const { device->free(at); }
  };
  std::unique_ptr<char, Free> at_;
};

std::unique_ptr<Device> make_host_device(tuttiComm_t comm);
// `comm` is on the CUDA device. Between two calls of synchronize(), look() is asked for at most `most_looks` results.
Status make_cuda_device(tuttiComm_t comm, int device, size_t most_looks, std::unique_ptr<Device>* made);

}  // namespace tutti::ddp
