#include "group/launcher_store.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>

#include "base/at_fork.h"
#include "group/bootstrap_connect.h"
#include "group/pmi.h"
#include "group/tcp_store.h"

namespace tutti {
namespace {

constexpr double kFarewellSeconds = 2;

std::string to_hex(const void* data, size_t bytes) {
  std::string text;
  const auto* at = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; i++) text += format("%02x", at[i]);
  return text;
}

std::optional<std::string> from_hex(std::string_view text) {
  std::string bytes;
  for (; text.size() >= 2; text.remove_prefix(2)) {
    uint8_t byte = 0;
    if (std::from_chars(text.data(), text.data() + 2, byte, 16).ptr != text.data() + 2) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return text.empty() ? std::optional(bytes) : std::nullopt;
}

// A process that has spoken to its launcher and ends without a farewell counts as crashed, and the launcher kills the
// others. A later MPI_Init and the next group need the connection, so the farewell is said at exit.
// Never destroyed: exit handlers of other libraries may still be running.
struct AtExit {
  std::mutex mutex;  // see launcher_mutex()
  pid_t pid = 0;     // a forked child does not speak for its parent
  std::optional<Pmi> pmi;
  int pmi_fd = -1;
  struct stat pmi_socket {};
  std::optional<Error> pmi_failure;  // kept: a late answer would be taken for the next one
};
AtExit& g_at_exit = *new AtExit;
[[maybe_unused]] const bool g_mutex_is_made_anew = do_in_children([] { new (&g_at_exit.mutex) std::mutex; });

bool same_socket(int fd, const struct stat& before) {
  struct stat now {};
  return fstat(fd, &now) == 0 && now.st_dev == before.st_dev && now.st_ino == before.st_ino;
}

void say_farewell() {
  AtExit& state = g_at_exit;
  if (state.pid != getpid()) return;
  // Unless MPI_Finalize has said it and closed the socket, whose number may have been reused by now.
  if (state.pmi && same_socket(state.pmi_fd, state.pmi_socket)) {
    state.pmi->set_deadline(Deadline::after_seconds(kFarewellSeconds));
    [[maybe_unused]] const auto too_late_for_errors = state.pmi->finalize();
  }
}

Result<UniqueId> share(Pmi& pmi, const std::string& key, int rank, Deadline deadline) {
  pmi.set_deadline(deadline);
  Result<UniqueId> made = UniqueId{};
  if (rank == 0) made = start_root(deadline);
  if (!made) made.error().culprit_rank = rank;  // it is not PMI that has failed
  if (rank == 0) TUTTI_TRY(pmi.put(key, to_published(made)));
  TUTTI_TRY(pmi.barrier());
  if (!made) return made;
  TUTTI_TRY_ASSIGN(const std::string published, pmi.get(key));
  return from_published(published);
}

}  // namespace

std::mutex& launcher_mutex() {
  return g_at_exit.mutex;
}

std::string to_published(const Result<UniqueId>& id) {
  if (id) return "id" + to_hex(id.value().bytes, sizeof id.value().bytes);
  return "no" + to_hex(id.error().message.data(), id.error().message.size());
}

Result<UniqueId> from_published(const std::string& text) {
  const auto bytes = from_hex(text.size() < 2 ? text : text.substr(2));
  UniqueId id;
  if (bytes && text.starts_with("id") && bytes->size() == sizeof id.bytes) {
    memcpy(id.bytes, bytes->data(), sizeof id.bytes);
    return id;
  }
  if (bytes && text.starts_with("no"))
    return Error{Code::kRemoteError, "rank 0 could not start the group's root: " + *bytes, 0};
  return Error{Code::kRemoteError, "the launcher's store holds something that is not a unique id"};
}

// torchrun's agents keep the store when they restart their ranks, and do not all count the restarts: an agent that only
// hears of another one's failure, or of a new node, does not. So no key belongs to one restart. Until rank 0 has
// written, the key may hold an older value: an id whose root is gone, or the reason for an earlier failure.
Result<UniqueId> share_by_tcp_store(const std::string& host, uint16_t port, const std::string& key, int rank,
                                    Deadline deadline) {
  TUTTI_TRY_ASSIGN(TcpStore store, TcpStore::connect(host, port, deadline));
  if (rank == 0) {
    auto id = start_root(deadline);
    TUTTI_TRY(store.set(key, to_published(id)));
    if (!id) return id;
  }
  constexpr double kOldNewsSeconds = 10;
  const Deadline believes = Deadline::after_seconds(kOldNewsSeconds);
  std::optional<Error> said;  // by rank 0, now or before a restart
  RootSearch search(rank, deadline);
  // Rank 0 asks too: the answer proves that the store has the key before the connection closes.
  for (constexpr int kPauseMs = 100;; ::poll(nullptr, 0, deadline.left_ms(kPauseMs))) {
    const auto published = store.get(key);
    if (!published) return said ? *said : published.error();
    auto id = from_published(published.value());
    if (rank == 0 || (!id && (believes.passed() || deadline.passed()))) return id;
    if (!id) {
      said = id.error();
      continue;
    }
    auto asked = search.ask(id.value());
    if (asked) return id;
    if (deadline.passed()) return asked.error();
  }
}

Result<UniqueId> share_by_pmi(int fd, const std::string& key, int rank, Deadline deadline) {
  AtExit& state = g_at_exit;
  const std::lock_guard lock(state.mutex);
  if (state.pmi_failure) return *state.pmi_failure;
  if (!state.pmi) {
    auto pmi = Pmi::init(fd, deadline);
    if (!pmi) return *(state.pmi_failure = std::move(pmi).error());
    state.pmi = std::move(pmi).value();
    state.pmi_fd = fd;
    fstat(fd, &state.pmi_socket);
    state.pid = getpid();
    std::atexit(say_farewell);
  }
  if (!same_socket(state.pmi_fd, state.pmi_socket))
    return Error{Code::kInvalidUsage,
                 "the launcher's PMI descriptor was closed (by MPI_Finalize?): create communicators before that"};
  auto id = share(*state.pmi, key, rank, deadline);
  if (!id && id.error().culprit_rank < 0) state.pmi_failure = id.error();
  return id;
}

}  // namespace tutti
