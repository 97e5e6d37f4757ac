// The perf tools' device over tests/cuda's made-up CUDA runtime, to try what they do on a GPU without one.
#include <cstring>

#include "cuda/fake.h"
#include "device.h"

namespace tutti::perf::device {
namespace {

// One per process: ranks that are processes create it after the fork.
tutti_test::FakePort& port() {
  static auto* made = new tutti_test::FakePort(2);
  return *made;
}

template <class T>
Status status_of(const tutti::Result<T>& result) {
  return result ? Status() : Status(Error{result.error().message});
}

}  // namespace

Status count(int* devices) {
  const auto found = port().device_count();
  *devices = found ? found.value() : 0;
  return status_of(found);
}

Status enter(int number) {
  return status_of(port().use(number));
}

std::string name(int) {
  return "made up";
}

Status allocate(size_t bytes, void** memory) {
  const auto made = port().allocate(bytes);
  *memory = made ? made.value() : nullptr;
  return status_of(made);
}

void release(void* memory) {
  if (memory != nullptr) port().free(memory);
}

Status copy(void* to, const void* from, size_t bytes) {
  memcpy(to, from, bytes);
  return {};
}

Status clear(void* memory, size_t bytes) {
  memset(memory, 0, bytes);
  return {};
}

Status create_stream(tuttiStream_t* stream) {
  const auto made = port().create_stream();
  if (made) *stream = static_cast<tuttiStream_t>(made.value());
  return status_of(made);
}

Status synchronize(tuttiStream_t stream) {
  return status_of(port().synchronize(stream));
}

void destroy(tuttiStream_t stream) {
  port().destroy_stream(stream);
}

Graph::~Graph() {
  if (is_capturing_) static_cast<void>(end());
  delete static_cast<tutti_test::FakeGraph*>(executable_);
}

Status Graph::begin(tuttiStream_t stream) {
  auto* graph = new tutti_test::FakeGraph;
  stream_ = stream;
  executable_ = graph;
  is_capturing_ = true;
  port().begin_capture(stream, graph);
  return {};
}

Status Graph::end() {
  is_capturing_ = false;
  return status_of(port().end_capture(stream_));
}

Status Graph::launch() const {
  return status_of(port().launch(*static_cast<const tutti_test::FakeGraph*>(executable_), stream_));
}

}  // namespace tutti::perf::device
