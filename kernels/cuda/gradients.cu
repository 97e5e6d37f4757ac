// Gradients: conversion to 16 bits and back, quantisation, checks of their values, and PowerSGD's factors.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/run_gradients.h"

namespace tutti::cuda {
namespace gradients {  // not unnamed: kernels' names must not depend on where the tree is

__device__ Team here() {
  return {blockIdx.x, gridDim.x};
}

template <class Run>
__global__ void __launch_bounds__(kGradientThreads, 2) spans(const __grid_constant__ SpanCall call) {
  run_spans<Run>(call, here());
}

template <FactorPart kPart>
__global__ void __launch_bounds__(kGradientThreads, 2) factors(const __grid_constant__ FactorCall call) {
  run_factors<kPart>(call, here());
}

template <class Run>
const void* kernel_of(Run) {
  return reinterpret_cast<const void*>(spans<Run>);
}

}  // namespace gradients

using namespace gradients;

const void* span_kernel(const SpanCall& call) {
  return with_span_run(call, [](auto run) { return kernel_of(run); });
}

const void* factor_kernel(FactorPart part) {
  static constexpr void (*kKernels[])(FactorCall) = {factors<FactorPart::kProject>,
                                                     factors<FactorPart::kOrthonormalise>, factors<FactorPart::kFindQ>,
                                                     factors<FactorPart::kRebuild>, factors<FactorPart::kKeepQ>};
  return reinterpret_cast<const void*>(kKernels[static_cast<int>(part)]);
}

}  // namespace tutti::cuda
