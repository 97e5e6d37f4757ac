// This header: memory of ranks that are gone. The others still have it open, or a kernel of theirs writes to it that
// nobody here waits for (the count of a message that was taken), so it is freed by whoever notices that all have left.
// Threading: any thread.
#pragma once

#include <memory>

#include "cuda/meeting.h"
#include "cuda/port.h"

namespace tutti::cuda {

struct Kept {
  Port* port = nullptr;
  int device = 0;
  void* memory = nullptr;
  std::unique_ptr<Attendee> others;  // null: nobody can tell, so it stays
};

// Of a rank that has left; without memory it has nothing to keep. Frees what need not be kept any more: the last one
// who leaves frees all that the others had to leave.
void keep(Kept kept);

}  // namespace tutti::cuda
