// What the planner says of operations, for people and for tuttiGroupSimulateEnd.
#include <algorithm>
#include <set>

#include "comm/communicator.h"

namespace tutti {
namespace {

std::string transports_of(const Program& program) {
  std::set<std::string> names;
  for (const Link* link : program.sends) names.insert(link->transport());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

}  // namespace

double Communicator::estimate_ns(const Operation& operation) {
  const Turnstile::Turn turn(*turnstile_, take_ticket());
  if (operation.collective == Collective::kSendRecv) {
    std::vector<Planner::Transfer> transfers;
    for (const Message& m : *operation.messages) transfers.push_back({m.peer, m.sends, m.count * dtype_bytes(m.dtype)});
    return planner_->estimate_ns(transfers);
  }
  return planner_->estimate_ns(to_call(operation), planned_bytes(operation));
}

std::string Communicator::explain(Collective collective, uint64_t count, DataType dtype, RedOp op) {
  const Turnstile::Turn turn(*turnstile_, take_ticket());
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.op = op;
  const uint64_t bytes = count * dtype_bytes(dtype);
  std::string text = planner_->explain(call, bytes);
  const Plan plan = planner_->choose(call, bytes);
  const auto made = std::find_if(programs_.begin(), programs_.end(), [&](const auto& entry) {
    const auto& [of, algo, lanes, root] = entry.first;
    return of == collective && algo == plan.algo && lanes == plan.lanes;
  });
  text += "links: ";
  text += made == programs_.end() ? "made at first use" : transports_of(made->second);
  text += "\n";
  if (device_ == nullptr) return text;
  Operation operation;
  operation.collective = collective;
  operation.count = count;
  operation.dtype = dtype;
  return device_->explain(operation) + text;
}

}  // namespace tutti
