// What the perf tools measure: one entry for each tool.
#pragma once

#include "collective.h"

namespace tutti::perf {

extern const Collective kAllGather, kAllReduce, kAllReduceQuantized, kAlltoAll, kAlltoAllv, kBarrier, kBroadcast,
    kGather, kReduce, kReduceScatter, kScatter, kSendRecv;

}  // namespace tutti::perf
