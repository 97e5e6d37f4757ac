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

std::string Communicator::explain_wait() const {
  Witnesses witnesses;
  if (!recorder_.path().empty())
    witnesses = find_witnesses(recorder_.path().substr(0, recorder_.path().rfind('/')))[recorder_.header().group];
  witnesses.insert_or_assign(rank_, Witness{read_trace(recorder_), 'R'});
  return why(witnesses, rank_);
}

}  // namespace tutti
