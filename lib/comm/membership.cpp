#include "comm/membership.h"

#include "base/env.h"

namespace tutti {

Result<CommOptions> CommOptions::from_env() {
  TUTTI_TRY(env_check());
  CommOptions options;
  TUTTI_TRY_ASSIGN(const int64_t init_seconds, env_int("TUTTI_INIT_TIMEOUT"));
  TUTTI_TRY_ASSIGN(const int64_t op_seconds, env_int("TUTTI_OP_TIMEOUT"));
  options.init_timeout_seconds = static_cast<double>(init_seconds);
  options.op_timeout_seconds = static_cast<double>(op_seconds);
  options.transports = env_string("TUTTI_TRANSPORTS");
  TUTTI_TRY(options.set_algo(env_string("TUTTI_ALGO")));
  options.trace_file = env_path("TUTTI_TRACE_FILE");
  options.metrics_file = env_path("TUTTI_METRICS_FILE");
  options.exposes = env_string("TUTTI_PROTO") != "copy";
  TUTTI_TRY_ASSIGN(const int64_t deterministic, env_int("TUTTI_DETERMINISTIC"));
  TUTTI_TRY_ASSIGN(const int64_t encrypt, env_int("TUTTI_ENCRYPT"));
  options.deterministic = deterministic != 0;
  options.encrypt = encrypt != 0;
  return options;
}

Result<void> CommOptions::set_algo(const std::string& name) {
  auto parsed = parse_algo(name);
  if (!parsed) return Error{parsed.error().code, "TUTTI_ALGO or the configuration's algo: " + parsed.error().message};
  algo = parsed.value();
  return {};
}

}  // namespace tutti
