// This header: ranks that can map each other's GPU memory, in several processes or on several GPUs. Processes that
// share a GPU take turns on it, so no kernel there may spin until another rank has done something. Every rank has an
// arena that all others map. An operation is a sequence of phases, each a kernel of its own: put the input into the
// rank's own arena, take what it needs from all arenas. Between phases the streams wait for words that the others'
// streams write into the arena (cuStreamWaitValue32), which occupies no kernel. An operation enqueues the same every
// time, and resets each word after the wait, so captured graphs can be replayed. Where every rank has a GPU of its own,
// in one process or several, all-reduces up to a size are one kernel on each that does spin (kernels/cuda/lines.h), and
// a schedule that the user has forced is interpreted, with its slots in the arenas. Large operations of ranks that are
// all in one process, sharing GPUs or not, need no arena: their kernels read and write the ranks' buffers where these
// lie, if CUDA lets them; between processes this needs buffers that the user has registered. Where processes share a
// GPU, each phase waits until all of them have had their turn on it, so operations that are not large go through host
// memory instead, with copies that need no turn.
#pragma once

#include "cuda/ways.h"

namespace tutti::cuda {

// Unique to a process, even among its forked children: a random word and the process's number.
using ProcessName = std::array<uint64_t, 2>;

// What a rank tells the others about itself.
struct Seat {
  ProcessName process{};
  int host = 0;
  int device = 0;
  DeviceInfo info;

  bool is_on_gpu_of(const Seat& other) const { return host == other.host && info.uuid == other.info.uuid; }
  // And in the same process.
  bool shares_gpu_with(const Seat& other) const { return process == other.process && info.uuid == other.info.uuid; }
};

// Collective. All ranks pass the same `name`, which no other group has. Null where some rank cannot map another rank's
// memory, or what is written there does not arrive: `why` says so. An error ends the creation.
// `device_group`: null if this rank is the only one of its process on its GPU.
Result<std::unique_ptr<Way>> make_phases(Host& host, Port& port, const std::vector<Seat>& seats,
                                         const std::shared_ptr<DeviceGroup>& device_group, const std::string& name,
                                         std::string* why);

}  // namespace tutti::cuda
