#include "topology/cluster.h"

namespace tutti {

Result<Cluster> cluster_from_json(std::string_view, const std::string& file) {
  return Error{Code::kInvalidUsage, "the network in " + file + " cannot be read: this build has no nlohmann-json; " +
                                        "install nlohmann-json3-dev and build again"};
}

}  // namespace tutti
