// Lists of tensor sizes (--sizes-from): text files of "name count" lines with '#' comments.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "status.h"

namespace tutti::perf {

struct Tensor {
  std::string name;
  size_t count;
};

// `name` is a path, or the name of a list shipped in tools/perf/models or installed to share/tutti/models.
Status load_tensors(const std::string& name, std::vector<Tensor>* tensors);

}  // namespace tutti::perf
