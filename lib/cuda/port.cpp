#include "cuda/port.h"

#include <atomic>

namespace tutti::cuda {
namespace {

std::atomic<Port*> g_port{nullptr};

}  // namespace

Port* port() {
  Port* const set = g_port.load();
  return set != nullptr ? set : runtime_port();
}

void set_port(Port* port) {
  g_port.store(port);
}

}  // namespace tutti::cuda
