#include "tools/sim/calibrate.h"

#include <algorithm>
#include <cmath>

namespace tutti::sim {
namespace {

using Operations = std::span<const MeasuredOperation>;

Result<std::vector<double>> log_errors(Operations operations, const Cluster& cluster) {
  std::vector<double> errors;
  for (const MeasuredOperation& each : operations) {
    TUTTI_TRY_ASSIGN(const Network network, Network::make(cluster, each.n_ranks));
    TUTTI_TRY_ASSIGN(const Outcome outcome, run(network, each.of, each.algo));
    errors.push_back(std::log(outcome.ns / each.ns));
  }
  return errors;
}

Result<double> loss_of(Operations operations, const Cluster& cluster) {
  TUTTI_TRY_ASSIGN(const std::vector<double> errors, log_errors(operations, cluster));
  double sum = 0;
  for (const double error : errors) sum += std::abs(error);
  return sum / static_cast<double>(errors.size());
}

// Multiplies or divides the cluster's costs by `step`, one after the other, for as long as that reduces the loss.
Result<void> descend(Operations operations, double step, Cluster* cluster, double* least) {
  std::vector<double*> costs{&cluster->cpus.summed_byte_ns, &cluster->cpus.far_byte_ns, &cluster->cpus.operation_ns,
                             &cluster->cpus.switch_ns,      &cluster->nic.burst_bytes,  &cluster->cpus.cache_bytes,
                             &cluster->cpus.evicted_byte_ns};
  for (Conduit* const way : {&cluster->local, &cluster->nic})
    for (double* const cost : {&way->bytes_per_second, &way->latency_ns, &way->message_ns, &way->byte_ns})
      costs.push_back(cost);
  for (bool gains = true; gains;) {
    gains = false;
    for (double* const cost : costs)
      for (const double factor : {step, 1 / step}) {
        const double before = *cost;
        *cost *= factor;
        TUTTI_TRY_ASSIGN(const double loss, loss_of(operations, *cluster));
        constexpr double kGain = 1e-4;
        if (loss < *least - kGain) {
          *least = loss;
          gains = true;
        } else {
          *cost = before;
        }
      }
  }
  return {};
}

}  // namespace

Result<Calibration> calibrate(Operations operations, Cluster start) {
  if (operations.empty()) return Error{Code::kInvalidUsage, "there are no operations to learn from"};
  Calibration found{std::move(start)};
  TUTTI_TRY_ASSIGN(double least, loss_of(operations, found.cluster));
  for (const double step : {2.0, 1.4, 1.2, 1.1, 1.05, 1.02})
    TUTTI_TRY(descend(operations, step, &found.cluster, &least));
  TUTTI_TRY_ASSIGN(std::vector<double> errors, log_errors(operations, found.cluster));
  for (double& error : errors) error = std::abs(std::exp(error) - 1);
  const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
  std::nth_element(errors.begin(), middle, errors.end());
  found.median_error = *middle;
  return found;
}

}  // namespace tutti::sim
