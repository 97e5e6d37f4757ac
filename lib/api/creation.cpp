#include "api/creation.h"

#include <algorithm>

#include "api/group.h"
#include "cuda/port.h"

namespace tutti::api {
namespace {

// A rank that already has the new communicator may end or revoke the old one while others still join.
constexpr int64_t kLostInCreationNs = 1'000'000'000;
// A rank that the new group does not need was lost. Members that began the creation before they heard of it are on
// their way, later ones are refused. Long enough for the largest groups to form.
constexpr int64_t kOthersLostNs = 20'000'000'000;

Result<void> take_int(int value, const char* name, int min, double* to) {
  if (value == TUTTI_CONFIG_UNDEF_INT) return {};
  if (value < min) return invalid_argument(format("config.%s=%d is out of range: at least %d", name, value, min));
  *to = value;
  return {};
}

Result<void> take_bool(int value, const char* name, bool* to) {
  if (value == TUTTI_CONFIG_UNDEF_INT) return {};
  if (value != 0 && value != 1) return invalid_argument(format("config.%s=%d is not 0 or 1", name, value));
  *to = value == 1;
  return {};
}

Result<Config> take_config(const tuttiConfig_t* config, Config read) {
  CommOptions& options = read.options;
  if (config == nullptr) return read;
  // Every version has the first three fields.
  if (config->magic != TUTTI_CONFIG_MAGIC || config->size < offsetof(tuttiConfig_t, initTimeoutSeconds))
    return invalid_argument("config was not initialised: start from TUTTI_CONFIG_INITIALIZER");
  tuttiConfig_t known = TUTTI_CONFIG_INITIALIZER;
  memcpy(&known, config, std::min(config->size, sizeof known));
  TUTTI_TRY(take_int(known.initTimeoutSeconds, "initTimeoutSeconds", 1, &options.init_timeout_seconds));
  TUTTI_TRY(take_int(known.opTimeoutSeconds, "opTimeoutSeconds", 1, &options.op_timeout_seconds));
  TUTTI_TRY(take_bool(known.deterministic, "deterministic", &options.deterministic));
  TUTTI_TRY(take_bool(known.encrypt, "encrypt", &options.encrypt));
  TUTTI_TRY(take_bool(known.majority, "majority", &options.majority));
  TUTTI_TRY(take_bool(known.blocking, "blocking", &read.blocking));
  if (known.transports != nullptr) options.transports = known.transports;
  if (known.algo != nullptr) TUTTI_TRY(options.set_algo(known.algo));
  TUTTI_TRY(take_cuda_device(known.cudaDevice, "config.cudaDevice", &options.cuda_device));
  return read;
}

// An exception, usually for lack of memory, ended a creation before its turns: takes them, so that nobody waits for
// these, and breaks the communicator, so that other ranks do not wait for this rank's operations.
void forgo_turns(const Source& source, const Error& error) {
  TicketLock& ticket_lock = source.handle->ticket_lock;
  for (const uint64_t ticket : source.tickets) {
    if (ticket_lock.has_passed(ticket)) continue;
    const TicketLock::Turn turn(ticket_lock, ticket);
    (void)carry_out(source.comm->monitor(), [&]() -> Result<void> { return error; });
  }
}

}  // namespace

Result<Config> read_config(const tuttiConfig_t* config) {
  TUTTI_TRY_ASSIGN(const CommOptions options, CommOptions::from_env());
  return take_config(config, {options});
}

Result<void> take_cuda_device(int value, const std::string& name, int* to) {
  if (value == TUTTI_CONFIG_UNDEF_INT) return {};
  if (value < -1)
    return invalid_argument(format("%s=%d is neither a CUDA device nor -1 (host memory)", name.c_str(), value));
  *to = value;
  if (value == -1) return {};
  cuda::Port* const port = cuda::port();
  if (port == nullptr)
    return Error{
        Code::kInvalidUsage,
        format("%s=%d: this library was built without CUDA: build it with -Dcuda=enabled where nvcc is, or give "
               "-1 for host memory",
               name.c_str(), value)};
  const auto count = port->device_count();
  if (!count)
    return Error{Code::kInvalidUsage, format("%s=%d: no CUDA device can be used: %s; give -1 for host memory",
                                             name.c_str(), value, count.error().message.c_str())};
  if (value >= count.value())
    return Error{Code::kInvalidUsage,
                 format("%s=%d: this process sees %d CUDA devices, numbered from 0 (CUDA_VISIBLE_DEVICES)",
                        name.c_str(), value, count.value())};
  return {};
}

Result<void> create(tuttiComm_t* handle, const Config& config, Member::Creation creation, std::function<void()> begin,
                    tuttiComm_t from) {
  if (!config.blocking) {
    const auto member = std::make_shared<Member>();
    TUTTI_TRY(member->create(std::move(creation), config.deadline(), std::move(begin)));
    if (handle == nullptr) return {};
    *handle = make_handle(member);
    return in_background("the creation of a communicator");
  }
  return launch_blocking(from, [=]() -> Result<void> {
    if (begin) begin();
    TUTTI_TRY_ASSIGN(auto comm, creation(config.deadline()));
    if (handle != nullptr) *handle = make_handle(std::make_shared<Member>(std::move(comm)));
    return {};
  });
}

int64_t Source::patience_ns(const std::vector<int>& members) const {
  const bool failed = comm->monitor().failed();  // read first: a rank enters lost() before the group fails
  const std::vector<int> lost = comm->monitor().watch().lost();
  const bool needs_lost = std::find_first_of(lost.begin(), lost.end(), members.begin(), members.end()) != lost.end();
  if (needs_lost) return kLostInCreationNs;
  if (!failed) return INT64_MAX;
  if (lost.empty()) return kLostInCreationNs;  // it has ended for all
  return kOthersLostNs;
}

Result<std::unique_ptr<Communicator>> Source::make(const Deadline& deadline, const Member::Creation& creation,
                                                   const std::vector<int>& members) const {
  const auto aborted = comm.member().aborted();
  const auto end_ns = std::make_shared<std::atomic<int64_t>>(INT64_MAX);
  // A relay's thread may still call this when the creation is over and *this is gone.
  const auto is_over = [aborted, end_ns, members, weak = weak_from_this()] {
    const auto self = members.empty() ? nullptr : weak.lock();
    const int64_t patience_ns = self ? self->patience_ns(members) : INT64_MAX;
    if (patience_ns != INT64_MAX) *end_ns = std::min(end_ns->load(), now_ns() + patience_ns);
    return *aborted || now_ns() > *end_ns;
  };
  auto made = creation(deadline.or_when(is_over));
  if (!made && *aborted) return Error{Code::kInvalidUsage, "tuttiCommAbort was called on this rank", comm->rank()};
  if (!made && *end_ns != INT64_MAX) TUTTI_TRY(comm->async_error());
  return made;
}

Result<std::shared_ptr<Source>> source_of(tuttiComm_t handle, const tuttiConfig_t* config, size_t n_turns) {
  TUTTI_TRY_ASSIGN(Use comm, use_of(handle));
  TUTTI_TRY_ASSIGN(Config read, take_config(config, {comm->membership().options, comm.member().blocking()}));
  return std::make_shared<Source>(handle, std::move(comm), std::move(read), n_turns);
}

Result<void> create_from(const std::shared_ptr<Source>& source, tuttiComm_t* handle, Member::Creation creation,
                         const std::function<void()>& first) {
  const auto begin = [source, first] {
    if (first) first();
    for (uint64_t& ticket : source->tickets) ticket = source->comm->take_ticket();
  };
  const auto make = [source, creation = std::move(creation)](const Deadline& deadline) {
    try {
      return creation(deadline);
    } catch (...) {
      const Error error = caught();
      forgo_turns(*source, error);
      return Result<std::unique_ptr<Communicator>>(error);
    }
  };
  return create(handle, source->config, make, begin, source->handle);
}

}  // namespace tutti::api
