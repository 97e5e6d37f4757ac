// A program that this is linked with runs the PTX of the GPU's kernels, wherever a kernel is to run.
#pragma once

#include "code.h"

namespace tutti_test::ptx {

// What nvcc made of all files of kernels/cuda, for one architecture.
const Module& real_module();
// The text of the one kernel of a file ("lines") whose name contains this, to be changed.
std::string real_text(const std::string& file, const std::string& kernel);

}  // namespace tutti_test::ptx
