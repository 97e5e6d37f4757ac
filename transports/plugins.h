// Transports from shared objects, through the function that include/tutti/transport.h describes. Any thread. What was
// loaded stays to the end of the process.
#pragma once

#include <string>

#include "base/result.h"
#include "tutti/transport.h"

namespace tutti {

// kInvalidUsage names the path and what is wrong: no such file, no plugin, a table of another version, or the plugin's
// own reason why it is of no use here.
Result<const tuttiTransport*> load_plugin(const std::string& path);

}  // namespace tutti
