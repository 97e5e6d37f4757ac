// The TCPStore client against a server in this test, and against PyTorch's own server where there is one.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "catch.h"
#include "group/bootstrap_root.h"
#include "group/launcher.h"
#include "group/launcher_store.h"
#include "group/tcp_store.h"
#include "moving_host.h"
#include "ranks.h"

using namespace tutti;
using namespace tutti::test;

namespace {

class FakeStore {
 public:
  explicit FakeStore(int n_clients) {
    auto listening = listen_any(0, &port_);
    if (listening) listener_ = std::move(listening).value();
    for (int i = 0; i < n_clients; i++)
      threads_.emplace_back([this] {
        Fd fd;
        while (!(fd = accept_one(listener_.get()))) std::this_thread::yield();
        serve(fd.get());
      });
  }
  ~FakeStore() {
    for (std::thread& t : threads_) t.join();
  }
  uint16_t port() const { return port_; }
  std::map<std::string, std::string> values() {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  std::atomic<int> answers_after_ms{0};

 private:
  template <class T>
  static bool read(int fd, T* value) {
    return static_cast<bool>(recv_all(fd, value, sizeof *value, Deadline::never()));
  }
  static std::string read_string(int fd) {
    uint64_t bytes = 0;
    std::string text;
    if (read(fd, &bytes) && bytes < 10000) text.resize(bytes);
    return recv_all(fd, text.data(), text.size(), Deadline::never()) ? text : "";
  }

  void serve(int fd) {
    uint8_t query = 0;
    uint32_t magic = 0;
    if (!read(fd, &query) || query != 0 || !read(fd, &magic) || magic != 0x3C85F7CE) return;
    while (read(fd, &query)) {
      if (query == 1) set(fd);
      if (query == 3) get(fd);
      if (query == 6) wait(fd);
      if (query != 1 && query != 3 && query != 6) return;
    }
  }
  void set(int fd) {
    const std::string key = read_string(fd), value = read_string(fd);
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  void get(int fd) {
    const std::string key = read_string(fd);
    const std::string value = values()[key];
    const uint64_t bytes = value.size();
    const std::string answer = std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + value;
    [[maybe_unused]] const auto sent = send_all(fd, answer.data(), answer.size(), Deadline::never());
  }
  void wait(int fd) {
    uint64_t n = 0;
    if (!read(fd, &n) || n != 1) return;
    const std::string key = read_string(fd);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return values_.contains(key); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(answers_after_ms));
    const uint8_t found = 0;
    [[maybe_unused]] const auto sent = send_all(fd, &found, 1, Deadline::never());
  }

  Fd listener_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::vector<std::thread> threads_;
};

// What a client that waits for a key gets from a server that sends `answer` and then nothing, or closes.
Fate get_against(const std::string& answer, bool closes) {
  Address bound;
  const auto listener = listen_on(resolve("127.0.0.1", 0).value()[0], &bound);
  auto store = TcpStore::connect("127.0.0.1", bound.port(), Deadline::after_seconds(1));
  if (!listener || !store) return {};
  Fd fd = accept_one(listener.value().get());
  if (!send_all(fd.get(), answer.data(), answer.size(), Deadline::after_seconds(10))) return {};
  if (closes) ::shutdown(fd.get(), SHUT_RDWR);
  const auto value = store.value().get("key");
  return value ? Fate{} : fate_of(value.error());
}

std::string joined_by_store(const std::string& host, uint16_t port, const std::string& key, int rank, int n_ranks) {
  const Deadline deadline = Deadline::after_seconds(60);
  const auto id = share_by_tcp_store(host, port, key, rank, deadline);
  if (!id) return id.error().message;
  auto joined = Bootstrap::join(id.value(), rank, n_ranks, deadline);
  if (!joined) return joined.error().message;
  const auto all = joined.value().all_gather(std::to_string(rank));
  return all ? "good" : all.error().message;
}

}  // namespace

TEST_CASE("a unique id travels through a TCPStore, also to ranks that ask before it is there") {
  FakeStore store(4);
  const auto outcomes = run_ranks<std::string>(first_ranks(4), [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return joined_by_store("localhost", store.port(), "tutti/run/0/0", rank, 4);
  });
  for (const std::string& outcome : outcomes) CHECK(outcome == "good");
  const auto values = store.values();
  REQUIRE(values.size() == 1);
  CHECK(values.begin()->first == "/tutti/run/0/0");
}

namespace {

struct Variable {
  Variable(const char* of_name, const std::string& value) : name(of_name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name); }
  const char* name;
};

}  // namespace

// A restarted rank may have a different restart count than others, or none.
TEST_CASE("however often torchrun has started a rank again, its key is that of the others") {
  FakeStore store(2);
  const Variable address("MASTER_ADDR", "localhost"), port("MASTER_PORT", std::to_string(store.port()));
  const Variable agent("TORCHELASTIC_USE_AGENT_STORE", "True"), run("TORCHELASTIC_RUN_ID", "job");
  LaunchInfo info;
  info.launcher = "torchrun";
  for (const char* restarts : {"0", "1"}) {
    const Variable count("TORCHELASTIC_RESTART_COUNT", restarts);
    CHECK(unique_id_from_launcher(info, Deadline::after_seconds(60)));
  }
  CHECK(store.values().size() == 2);
  for (const auto& [key, value] : store.values()) {
    INFO(key);
    CHECK(key.starts_with("/tutti/job/"));
    CHECK(std::count(key.begin(), key.end(), '/') == 3);  // after the job only the call's number
  }
}

TEST_CASE("that rank 0 can have no root is told to the others by the launcher's store") {
  FakeStore store(2);
  {
    const Variable filter("TUTTI_SOCKET_IFNAME", "no-such-interface");
    const auto none = share_by_tcp_store("localhost", store.port(), "tutti/job/0", 0, Deadline::after_seconds(60));
    REQUIRE(!none);
    CHECK(none.error().code == Code::kInvalidUsage);
  }
  store.answers_after_ms = 10;  // so that the last answer comes too late
  const auto told = share_by_tcp_store("localhost", store.port(), "tutti/job/0", 1, Deadline::after_seconds(1));
  REQUIRE(!told);
  CHECK(contains(told.error().message, "rank 0 could not start the group's root: TUTTI_SOCKET_IFNAME="));
  CHECK(told.error().culprit_rank == 0);
}

// With a separate client.
void publish(FakeStore& store, const std::string& key, const Result<UniqueId>& id) {
  auto client = TcpStore::connect("localhost", store.port(), Deadline::after_seconds(60));
  REQUIRE(client);
  REQUIRE(client.value().set(key, to_published(id)));
  while (store.values().empty()) std::this_thread::yield();
}
void publish(FakeStore& store, const std::string& key, const UniqueIdParts& parts) {
  publish(store, key, pack_unique_id(parts));
}

// The agent's store outlives its ranks.
TEST_CASE("an id of the time before that an agent's store still has is not taken") {
  FakeStore store(4);
  const ReservedPort gone = reserve_port();
  publish(store, "tutti/job/0", {resolve("127.0.0.1", gone.port).value(), {1, 2, 3}});
  const auto outcomes = run_ranks<std::string>(first_ranks(3), [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return joined_by_store("localhost", store.port(), "tutti/job/0", rank, 3);
  });
  for (const std::string& outcome : outcomes) CHECK(outcome == "good");
}

TEST_CASE("that there was no root the time before is not believed at once") {
  FakeStore store(3);
  publish(store, "tutti/job/0", Error{Code::kSystemError, "no socket"});
  const auto outcomes = run_ranks<std::string>(first_ranks(2), [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return joined_by_store("localhost", store.port(), "tutti/job/0", rank, 2);
  });
  for (const std::string& outcome : outcomes) CHECK(outcome == "good");
}

TEST_CASE("who does not reach the root that a store knows is told why, and not that the store is silent") {
  FakeStore store(2);
  const ReservedPort nobody = reserve_port();
  publish(store, "tutti/job/0", {resolve("127.0.0.1", nobody.port).value(), {1, 2, 3}});
  const auto id = share_by_tcp_store("localhost", store.port(), "tutti/job/0", 1, Deadline::after_seconds(0.5));
  REQUIRE(!id);
  CHECK(id.error().code == Code::kTimeout);
  CHECK(contains(id.error().message, "127.0.0.1:" + std::to_string(nobody.port) + ": connect: Connection refused"));
}

TEST_CASE("of the addresses that a store knows of a root the last one may lead there") {
  // On the same port 127.0.0.1 accepts and stays silent, and ::1 is the root.
  Address bound;
  const auto silent = listen_on(resolve("127.0.0.1", 0).value()[0], &bound);
  REQUIRE(silent);
  const Address last = resolve("::1", bound.port()).value()[0];
  auto listener = listen_on(last, nullptr);
  if (!listener) {
    WARN("skipped: no ::1 here, or its port is taken");
    return;
  }
  const UniqueIdParts parts{{bound, last}, {1, 2, 3}};
  const Key key = derive_key(parts.secret, sizeof parts.secret);
  RootServer server(only(std::move(listener).value()), key, Deadline::after_seconds(60));
  std::thread root([&] { server.run(); });
  FakeStore store(2);
  publish(store, "tutti/job/0", parts);
  const auto id = share_by_tcp_store("localhost", store.port(), "tutti/job/0", 1, Deadline::after_seconds(60));
  if (id) (void)Bootstrap::join(id.value(), 0, 1, Deadline::after_seconds(60));  // so that the root ends
  root.join();
  INFO((id ? "" : id.error().message));
  CHECK(id);
}

TEST_CASE("a store that is not there is a time-out that names it") {
  const ReservedPort reserved = reserve_port();
  const auto store = TcpStore::connect("127.0.0.1", reserved.port, Deadline::after_seconds(0.2));
  REQUIRE(!store);
  CHECK(store.error().code == Code::kTimeout);
  CHECK(contains(store.error().message, "127.0.0.1:" + std::to_string(reserved.port)));
  CHECK(contains(store.error().message, "refused"));
}

TEST_CASE("who comes before the store is there waits for it") {
  const ReservedPort reserved = reserve_port();
  REQUIRE(reserved.port != 0);
  Result<Fd> listener = Fd();
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    listener = listen_any(reserved.port, nullptr);
  });
  const auto store = TcpStore::connect("127.0.0.1", reserved.port, Deadline::after_seconds(60));
  opens.join();
  REQUIRE(listener);
  INFO((store ? "" : store.error().message));
  CHECK(store);
}

TEST_CASE("who finds no store at the address of its host looks the host's name up again") {
  Address bound;
  const auto listener = listen_on(resolve("127.0.0.1", 0).value()[0], &bound);
  REQUIRE(listener);
  const MovingHost host({"127.0.0.2", "127.0.0.1"});
  const auto store = TcpStore::connect(MovingHost::kName, bound.port(), Deadline::after_seconds(60));
  INFO((store ? "" : store.error().message));
  CHECK(store);
}

TEST_CASE("stores that are silent, gone, or speak nonsense are errors") {
  CHECK(get_against("", false).code == Code::kTimeout);
  CHECK(get_against("", true).code == Code::kRemoteError);
  CHECK(get_against("\x01", false).code == Code::kRemoteError);
  CHECK(get_against(std::string(1, '\0') + std::string(8, '\xff'), false).code == Code::kRemoteError);
  CHECK(get_against(std::string(1, '\0') + "\x05" + std::string(7, '\0') + "abc", false).code == Code::kTimeout);
}

TEST_CASE("what rank 0 publishes is an id or the reason why there is none") {
  UniqueId id{};
  for (size_t i = 0; i < sizeof id.bytes; i++) id.bytes[i] = static_cast<uint8_t>(3 * i);
  const std::string text = to_published(id);
  CHECK(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") == std::string::npos);
  const auto back = from_published(text);
  REQUIRE(back);
  CHECK(memcmp(back.value().bytes, id.bytes, sizeof id.bytes) == 0);

  const auto none = from_published(to_published(Error{Code::kSystemError, "no socket: = \n"}));
  REQUIRE(!none);
  CHECK(none.error().code == Code::kRemoteError);
  CHECK(none.error().culprit_rank == 0);
  CHECK(contains(none.error().message, "no socket: = \n"));

  for (const char* damaged : {"", "i", "id", "idab", "id0", "nothing", "noxx", "no0"}) CHECK(!from_published(damaged));
  CHECK(!from_published(text + "00"));
}

TEST_CASE("PyTorch's own TCPStore carries the id") {
  // TORCH_PYTHON: of the environment which tools/check --torch makes.
  const std::string python =
      "python=$TORCH_PYTHON; [ -x \"$python\" ] || python=python3; exec \"$python\" -W ignore -c ";
  if (std::system((python + "'import torch.distributed' 2>/dev/null").c_str()) != 0) {
    WARN("skipped: python3 has no torch here");
    return;
  }
  const std::string serve =
      "\"\n"
      "import sys, torch.distributed as dist\n"
      "store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
      "print(store.port, flush=True)\n"
      "store.wait(['tutti/done'])\n\" 2>/dev/null";
  FILE* server = popen((python + serve).c_str(), "r");
  REQUIRE(server != nullptr);
  int port = 0;
  REQUIRE(fscanf(server, "%d", &port) == 1);
  for (int call = 0; call < 3; call++) {
    const std::string key = "tutti/run/0/" + std::to_string(call);
    const auto outcomes = run_ranks<std::string>(first_ranks(4), [&](int rank) {
      return joined_by_store("127.0.0.1", static_cast<uint16_t>(port), key, rank, 4);
    });
    for (const std::string& outcome : outcomes) CHECK(outcome == "good");
  }
  auto store = TcpStore::connect("127.0.0.1", static_cast<uint16_t>(port), Deadline::after_seconds(60));
  REQUIRE(store);
  REQUIRE(store.value().set("tutti/done", "1"));
  CHECK(pclose(server) == 0);  // PyTorch's client saw the key
}
