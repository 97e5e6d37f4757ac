// A rank's replica of the model: what it trains, with which ranks, and where it lies. Constant once created.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agree.h"
#include "device.h"
#include "tensor.h"

namespace tutti::ddp {

struct Replica {
  HostTwin twin;  // owns the group's communicator if that is not the user's
  Group group;
  std::unique_ptr<Device> host, cuda;  // cuda: may be null; both outlive the memory allocated on them
  tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
  std::vector<Tensor> params, buffers;

  Device& device(int number) const { return number == TUTTI_DDP_HOST ? *host : *cuda; }
  std::vector<Device*> devices() const {
    if (cuda == nullptr) return {host.get()};
    return {host.get(), cuda.get()};
  }
  std::string name(size_t param) const { return name_of("parameter", param, params[param]); }
  // Waits for the GPU's work.
  Status synchronize() const {
    for (Device* device : devices())
      if (Status s = device->synchronize(); !s) return s;
    return {};
  }
  Status broadcast(const std::vector<Tensor>& tensors, int root, Queue queue) const {
    if (root < 0 || root >= group.size)
      return invalid_argument(text("root=%d; it has to be in [0, %d)", root, group.size));
    for (const Tensor& tensor : tensors) {
      if (tensor.data == nullptr || tensor.count == 0) continue;
      const Device& at = device(tensor.device);
      const auto sent = tuttiBcast(tensor.data, tensor.data_bytes(), tuttiUint8, root, at.comm(), at.stream(queue));
      if (Status s = library(sent); !s) return s;
    }
    return {};
  }
};

}  // namespace tutti::ddp
