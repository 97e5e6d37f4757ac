// Memory and streams of a CUDA device, through its driver, which is loaded at first use: building the tools needs no
// CUDA. Copying and clearing do not wait for other streams: those of this process's other ranks may wait for this rank.
#pragma once

#include <cstddef>
#include <string>

#include "status.h"

namespace tutti::perf::device {

// The number of devices here; if there are none the error says why.
Status count(int* devices);
// Makes a device the calling thread's. All functions below are for that device.
Status enter(int number);
std::string name(int number);

Status allocate(size_t bytes, void** memory);
void release(void* memory);
// Between host and device, in either direction; done when it returns.
Status copy(void* to, const void* from, size_t bytes);
Status clear(void* memory, size_t bytes);

// A cudaStream_t that waits for no other stream, for communicators on a device.
Status create_stream(tuttiStream_t* stream);
// NULL: the default stream.
Status synchronize(tuttiStream_t stream);
void destroy(tuttiStream_t stream);

// Operations captured from a stream, to be launched repeatedly.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Operations that the calling thread starts on the stream between the two do not run, but go into the graph.
  Status begin(tuttiStream_t stream);
  Status end();
  Status launch() const;

 private:
  tuttiStream_t stream_ = nullptr;
  bool is_capturing_ = false;
  void* executable_ = nullptr;
};

}  // namespace tutti::perf::device
