// A program that is linked with this runs the GPU kernels' PTX wherever it runs a kernel.
#pragma once

#include "code.h"

namespace tutti_test::ptx {

// The PTX of all files of kernels/cuda, for one architecture.
const Module& real_module();
// The text of the one kernel in a file ("lines") whose name contains this, for tests that change it.
std::string real_text(const std::string& file, const std::string& kernel);

}  // namespace tutti_test::ptx
