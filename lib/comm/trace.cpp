// What people are told of a communicator: files with its last operations, and whom it waits for.
#include <algorithm>

#include "comm/communicator.h"
#include "debug/trace_json.h"
#include "debug/why.h"

namespace tutti {

Result<void> Communicator::dump_trace(const std::string& path) const {
  TUTTI_TRY(write_trace(read_trace(recorder_), path));
  return {};
}

Result<void> Communicator::dump_traces(const std::string& path) {
  std::vector<Trace> traces;
  for_each_recorder([&](const Recorder& recorder) {
    if (recorder.header().n_ranks > 0) traces.push_back(read_trace(recorder));
  });
  for (const Trace& trace : traces) TUTTI_TRY(write_trace(trace, path));
  return {};
}

// Of a rank that was lost, what it was in, and what this one is in: on other hosts that is not known.
Error Communicator::with_places(Error error) const {
  const Trace mine = read_trace(recorder_);
  if (const TracedOperation* const last = mine.last())
    error.message +=
        format("; rank %d was in %s%s", rank_, to_text(*last).c_str(), in_parentheses(last->place).c_str());
  const Witnesses witnesses = inquiry_.seen();
  const auto culprit = witnesses.find(error.culprit_rank);
  if (error.culprit_rank == rank_ || culprit == witnesses.end()) return error;
  error.message += format(", rank %d was %s", error.culprit_rank, place_in_order(culprit->second.trace).c_str());
  return error;
}

std::string Communicator::explain_wait() const {
  Witnesses witnesses = inquiry_.all(*watch_);
  witnesses.insert_or_assign(rank_, Witness{read_trace(recorder_), 'R', {}});
  return why(witnesses, rank_);
}

RollCall::Rank Communicator::lateness(int rank) const {
  RollCall roll;
  Attendants(recorder_).look(&roll);
  roll.compare();
  const auto found = roll.ranks().find(rank);
  return found == roll.ranks().end() ? RollCall::Rank{} : found->second;
}

}  // namespace tutti
