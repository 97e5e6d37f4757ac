#include "comm/membership.h"

#include "base/env.h"

namespace tutti {

Result<CommOptions> CommOptions::from_env() {
  TUTTI_TRY(env_check());
  CommOptions options;
  TUTTI_TRY_ASSIGN(const int64_t init_seconds, env_int(Env::kInitTimeout));
  TUTTI_TRY_ASSIGN(const int64_t op_seconds, env_int(Env::kOpTimeout));
  options.init_timeout_seconds = static_cast<double>(init_seconds);
  options.op_timeout_seconds = static_cast<double>(op_seconds);
  options.transports = env_string(Env::kTransports);
  TUTTI_TRY(options.set_algo(env_string(Env::kAlgo)));
  options.trace_file = env_path(Env::kTraceFile);
  options.metrics_file = env_path(Env::kMetricsFile);
  options.exposes = env_string(Env::kProto) != "copy";
  TUTTI_TRY_ASSIGN(const int64_t deterministic, env_int(Env::kDeterministic));
  TUTTI_TRY_ASSIGN(const int64_t encrypt, env_int(Env::kEncrypt));
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
