// PowerSGD's arithmetic on a CPU.
#pragma once

#include "device.h"

namespace tutti::ddp {

void factor_on_host(FactorStep step, const Factors& matrix);

}  // namespace tutti::ddp
