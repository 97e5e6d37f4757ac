// This header: ranks that can map each other's GPU memory, in several processes or on several GPUs. Ranks of different
// processes on one GPU take turns on it, so none may spin until another one has done something. Every rank has an arena
// that all others map. An operation is a row of phases, each a kernel of its own: put the input into the own arena,
// take what one needs from all arenas. Between phases the streams wait for words that the others' streams write into
// the arena (cuStreamWaitValue32), which occupies no kernel. What an operation enqueues is the same every time, and a
// word that was waited for is taken back, so graphs that were captured can be replayed. Where every rank has a GPU of
// its own, in one process or several, all-reduces up to a size are one kernel on each that does spin
// (kernels/cuda/lines.h), and a schedule that was asked for is interpreted, with its slots in the arenas. Large
// operations of ranks that are all in one process, each on its GPU or not, need no arena: their kernels read and write
// the ranks' buffers where these lie, if CUDA lets them; between processes this is done with what the user has
// registered. Where processes share a GPU each phase waits for all of them to have had their turn on it, so what is not
// large goes through host memory instead, with copies that need no turn.
#pragma once

#include "cuda/ways.h"

namespace tutti::cuda {

// That no other process has, nor this one's child: a random word and the process's number.
using ProcessName = std::array<uint64_t, 2>;

// What a rank tells of itself.
struct Seat {
  ProcessName process{};
  int host = 0;
  int device = 0;
  DeviceInfo info;

  bool is_on_gpu_of(const Seat& other) const { return host == other.host && info.uuid == other.info.uuid; }
  // In one process, too.
  bool shares_gpu_with(const Seat& other) const { return process == other.process && info.uuid == other.info.uuid; }
};

// Collective. All ranks come with the same `name`, which no other group has. Null where some rank cannot map another
// one's memory, or what is written there does not arrive: `why` says so. An error ends the creation.
// `household`: null if this rank is the only one of its process on its GPU.
Result<std::unique_ptr<Way>> make_phases(Host& host, Port& port, const std::vector<Seat>& seats,
                                         const std::shared_ptr<Household>& household, const std::string& name,
                                         std::string* why);

}  // namespace tutti::cuda
