// Where <sys/sdt.h> was not there: nobody can attach.
#include "debug/probes.h"

extern "C" {
volatile unsigned short tutti_operation_begin_semaphore = 0;
volatile unsigned short tutti_operation_end_semaphore = 0;
}

namespace tutti {

void probe_begin(const TraceSlot&, int) {}
void probe_end(const TraceSlot&, int) {}

}  // namespace tutti
