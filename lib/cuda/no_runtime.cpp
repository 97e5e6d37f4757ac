// Built without CUDA.
#include "cuda/port.h"

namespace tutti::cuda {

Port* runtime_port() {
  return nullptr;
}

}  // namespace tutti::cuda
