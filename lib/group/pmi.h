// A client of PMI-1, the line protocol that MPICH's mpiexec and Slurm's pmi2 and pmi plugins speak on the inherited
// descriptor PMI_FD:
//
//   rank                                         launcher
//   cmd=init pmi_version=1 pmi_subversion=1 -->
//                                           <--  cmd=response_to_init rc=0 ...
//   get_maxes, get_my_kvsname, put, barrier_in, get, finalize: one line each way
//
// Blocking; one thread at a time. The descriptor is not owned. No byte beyond the answer's newline is read, so that an
// MPI_Init in the same process may follow: it starts with "init" again, which the launchers accept.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace tutti {

class Pmi {
 public:
  static Result<Pmi> init(int fd, Deadline deadline);
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  // As to_published() makes it (launcher_store.h); of a long reason the launcher gets what it has room for. Returns the
  // launcher's answer, as barrier() and finalize() do.
  Result<std::string> put(const std::string& key, const std::string& value);
  Result<std::string> get(const std::string& key);
  // Collective over the job: values put before it are visible to all after it.
  Result<std::string> barrier() { return ask("barrier_in", "barrier_out"); }
  // Tells the launcher that this process ends in good order. Nothing works afterwards.
  Result<std::string> finalize() { return ask("finalize", "finalize_ack"); }

 private:
  Pmi(int fd, Deadline deadline) : fd_(fd), deadline_(deadline) {}
  Result<std::string> ask(const std::string& command, const std::string& answer);
  Result<std::string> read_line();

  int fd_;
  Deadline deadline_;
  std::string kvs_name_;
  size_t most_chars_ = 0;  // of a value
};

}  // namespace tutti
