// A parameter or buffer, as the caller gave it to tuttiDdpCreate.
#pragma once

#include <string>
#include <vector>

#include "status.h"

namespace tutti::ddp {

// Bytes of an element; 0 for an invalid type.
size_t element_bytes(tuttiDataType_t type);
const char* type_name(tuttiDataType_t type);

struct Tensor {
  std::string name;
  void* data = nullptr;
  void* grad = nullptr;
  size_t count = 0;
  tuttiDataType_t type = tuttiFloat32;
  tuttiDataType_t grad_type = tuttiFloat32;
  std::vector<size_t> shape;
  int device = TUTTI_DDP_HOST;

  size_t data_bytes() const { return count * element_bytes(type); }
  size_t grad_bytes() const { return count * element_bytes(grad_type); }
};

// A copy of tensors[index], if it can be trained (or broadcast only, if it is a buffer) on a communicator on this CUDA
// device, or on none. `what` is "parameter" or "buffer".
Status take_tensor(const tuttiDdpTensor_t* tensors, size_t index, const char* what, int cuda_device, Tensor* out);

// "parameter 3 'encoder.weight'".
std::string name_of(const char* what, size_t index, const Tensor& tensor);

// What must be the same on all ranks: "parameter 3 'encoder.weight' of float32 [64, 32], gradient float32".
std::string describe(const char* what, size_t index, const Tensor& tensor);

}  // namespace tutti::ddp
