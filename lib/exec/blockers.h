// The idle path: which links block an operation, and what they report.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "exec/program.h"

namespace tutti {

class Blockers {
 public:
  Blockers(const Program& program, const BoundCall& call) : program_(program), call_(call) {}

  // Asks every link that a lane waits for whether it is still well.
  Result<void> poll() const;
  // Before sleeping: adds what to sleep on, in any case; the caller has to call wait_end() on each of these links.
  // False if something can go on already.
  struct Sleeper {
    Link* link;
    tuttiWait wait;
  };
  bool prepare_sleep(std::vector<Sleeper>* sleepers) const;
  // Whether a peer that this operation waits for was last seen on this CPU.
  bool awaits_one_on(int cpu) const;
  // "rank 3 (to send), rank 1 (to receive what this rank sends)"
  std::string text() const;
  // The same as messages of the operation: at least one for each rank that is waited for, except those that a link will
  // take as soon as it is made.
  std::vector<AwaitedMessage> awaited() const;

 private:
  template <class Visit>
  bool for_each_blocking(Visit&& visit) const;
  template <class Visit>
  void for_each_unsent(Visit&& visit) const;
  template <class Visit>
  void for_each(Visit&& visit) const;
  TagWords last_tag(const Link& link) const;

  const Program& program_;
  const BoundCall& call_;
};

}  // namespace tutti
