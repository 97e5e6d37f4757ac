#include "base/wide_aes.h"

namespace tutti {

const WideAes* wide_aes() {
  return nullptr;
}

}  // namespace tutti
