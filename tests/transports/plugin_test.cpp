// Plugins: which are loaded, their order, and the errors for those that cannot be loaded.
#include <cstdlib>
#include <fstream>
#include <thread>

#include "beside.h"
#include "strangers.h"
#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

namespace {

const std::string g_unix_plugin = tutti_test::beside_program("unix_plugin.so");
const std::string g_bad_plugin = tutti_test::beside_program("bad_plugin.so");

// The plugin for a version of NCCL's layout, 8 to 11.
std::string net_plugin(int version) {
  return tutti_test::beside_program("net_plugin_v" + std::to_string(version) + ".so");
}

// Sets TUTTI_TRANSPORT_PLUGIN for a scope.
class Plugin {
 public:
  explicit Plugin(const std::string& paths) { setenv("TUTTI_TRANSPORT_PLUGIN", paths.c_str(), 1); }
  ~Plugin() { unsetenv("TUTTI_TRANSPORT_PLUGIN"); }
};

std::string refusal(const std::string& paths, const std::string& names = "") {
  const Plugin plugin(paths);
  const auto found = find_transports(names);
  INFO(paths);
  REQUIRE_FALSE(found);
  CHECK(found.error().code == Code::kInvalidUsage);
  return found.error().message;
}

}  // namespace

TEST_CASE("plugin: it is found beside the built-in ones, and by its name") {
  const Plugin plugin(g_unix_plugin);
  CHECK(find_transports("").value().size() == 3);
  const auto one = find_transports("tcp,unix");
  REQUIRE(one);
  REQUIRE(one.value().size() == 2);
  CHECK(one.value()[1]->name == std::string("unix"));
  CHECK(find_transports("unix").value() == std::vector{one.value()[1]});
  CHECK(find_transports("tcp,shm,tcp").value() == std::vector{&kTcpTransport, &kShmTransport});  // in their order, once
}

TEST_CASE("plugin: its table has NULL for what it is too short for") {
  const Plugin plugin(g_unix_plugin);
  const tuttiTransport* unix_transport = find_transports("unix").value()[0];
  CHECK(unix_transport->post == nullptr);
  // It is ranked between the built-in ones.
  const auto cost = [](const tuttiTransport* t) {
    const tuttiEndpointInfo info = open_endpoint(t, 0).value().info();
    return info.latency_ns + 1e14 / static_cast<double>(info.bytes_per_second);
  };
  CHECK(cost(&kShmTransport) < cost(unix_transport));
  CHECK(cost(unix_transport) < cost(&kTcpTransport));
}

TEST_CASE("plugin: ten functions are enough") {
  const Plugin plugin(g_unix_plugin);
  tuttiTransport ten = *find_transports("unix").value()[0];
  ten.endpoint_reaches = nullptr;
  ten.wait_begin = nullptr;
  ten.wait_end = nullptr;
  Pair p = make_pair(&ten);
  CHECK(p.sender.unreachable_because("anywhere") == "");
  const Traffic traffic{45, 1000, 4096};
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  std::string trouble;
  std::thread sends([&] { trouble = run(sender, true); });
  CHECK(run(receiver, true) == "");
  sends.join();
  CHECK(trouble == "");
}

TEST_CASE("plugin: what cannot be loaded is said, with its path") {
  CHECK(contains(refusal("/nowhere/x.so"), "/nowhere/x.so"));
  CHECK(contains(refusal("libsodium.so.23"), "no function tuttiTransportPlugin"));
  const std::string twice = g_unix_plugin + "," + g_unix_plugin;
  CHECK(contains(refusal(twice), "already one of that name"));
  const std::string none = refusal(g_unix_plugin, "shm,unics");
  CHECK(contains(none, "'unics'"));
  CHECK(contains(none, "shm, tcp, unix"));
  CHECK(contains(refusal("", "tcp,"), "no transport ''"));
}

TEST_CASE("plugin: who asks for RDMA is told why there is none") {
  if (find_transports("verbs")) {
    WARN("skipped: this machine has RDMA");
    return;
  }
  const std::string why = refusal("", "shm,verbs");
  CHECK(contains(why, "there is no transport 'verbs' in 'shm,verbs'"));
  CHECK((contains(why, "no verbs, because there is no device in /sys/class/infiniband") ||
         contains(why, "libtutti-verbs.so")));
}

TEST_CASE("plugin: one with a table that does not fit is refused, and its own reason is told") {
  const auto because = [](const char* how) {
    const Setting setting("BAD_PLUGIN", how);
    const std::string why = refusal(g_bad_plugin);
    CHECK(contains(why, g_bad_plugin));
    return why;
  };
  for (const char* how : {"older", "newer", "short"}) CHECK(contains(because(how), "rebuild it"));
  for (const char* how : {"nameless", "comma"}) CHECK(contains(because(how), "name is empty or contains a comma"));
  for (const char* how : {"no endpoint_open", "no endpoint_close", "no connect", "no accept", "no link_poll",
                          "no link_close", "no acquire", "no publish", "no peek", "no release"})
    CHECK(contains(because(how), "one of the ten functions"));
  CHECK(contains(because("no card"), "there is no such card"));
}

TEST_CASE("plugin: what one for NCCL says of its devices is understood in every version") {
  for (const int version : {8, 9, 10, 11}) {
    const std::string path = net_plugin(version);
    INFO(path);
    Child child([&](Mailbox&) -> std::string {  // a process can only have one at a time
      const Plugin plugin(path);
      const auto found = find_transports("net");
      if (!found) return found.error().message;
      const tuttiEndpointInfo info = open_endpoint(found.value()[0], 1).value().info();
      if (info.latency_ns != 7500) return "latency " + std::to_string(info.latency_ns);
      const bool is_second = info.bytes_per_second == 40001ull * 125'000;
      return is_second ? "" : "bytes per second " + std::to_string(info.bytes_per_second);
    });
    CHECK(child.ended_well());
  }
}

TEST_CASE("plugin: one that was made for NCCL is the transport net, and there is one at a time") {
  {
    const Plugin plugin(net_plugin(8));
    const auto found = find_transports("net");
    REQUIRE(found);
    const tuttiEndpointInfo info = open_endpoint(found.value()[0], 1).value().info();
    CHECK(info.latency_ns == 7500);
    CHECK(info.bytes_per_second == 40001ull * 125'000);  // that of the second device
    const tuttiEndpointInfo third = open_endpoint(found.value()[0], 2, 3).value().info();
    CHECK(third.bytes_per_second == 40000ull * 125'000);  // that of the first device again
    {
      const Setting silent("NET_PLUGIN_LACKS", "figures");
      const tuttiEndpointInfo usual = open_endpoint(found.value()[0], 1).value().info();
      CHECK(usual.bytes_per_second == 1'000'000'000);
      CHECK(usual.latency_ns == 5000);
    }
    // A rank that leaves while it connects is forgotten.
    auto a = open_endpoint(found.value()[0], 0), b = open_endpoint(found.value()[0], 1);
    REQUIRE((a && b));
    const size_t before = open_descriptors();
    for (int polls = 0; polls < 20; polls++) {
      auto out = a.value().connect(Ask{}, b.value().address());
      REQUIRE(out);
      Link in;
      for (int i = 0; i < polls; i++) poll_once(out.value()), take(b.value(), &in);
    }
    CHECK(until([&] {
      Link in;
      return !take(b.value(), &in) && open_descriptors() == before;
    }));
  }
  const std::string all = net_plugin(8) + "," + net_plugin(9) + "," + net_plugin(10) + "," + net_plugin(11);
  CHECK(contains(refusal(all), "Made up is already loaded"));
}

TEST_CASE("plugin: one for NCCL without devices, or with one that cannot send host memory, is refused") {
  const auto without = [&](const char* what) {
    const Setting lacks("NET_PLUGIN_LACKS", what);
    return refusal(net_plugin(11));
  };
  CHECK(contains(without("devices"), "Made up found no device on this machine"));
  CHECK(contains(without("host memory"), "Made up cannot send host memory"));
}

TEST_CASE("plugin: a link of a net plugin is there at both ends or at neither") {
  const Plugin plugin(net_plugin(8));
  const auto found = find_transports("net");
  REQUIRE(found);
  for (const char* who : {"sender", "receiver"}) {
    CAPTURE(who);
    const Setting pins_no("NET_PLUGIN_PINS_NO", who);
    auto a = open_endpoint(found.value()[0], 0), b = open_endpoint(found.value()[0], 1);
    REQUIRE((a && b));
    auto out = a.value().connect(Ask{}, b.value().address());
    REQUIRE(out);
    Link in;
    bool is_taken = false, is_ready = false;
    CHECK(until([&] {
      is_taken = is_taken || take(b.value(), &in);
      const Health health = poll_once(out.value());
      is_ready = is_ready || health.ready;
      return !health;
    }));
    close(out.value());
    for (int i = 0; i < 1000; i++) is_taken = is_taken || take(b.value(), &in);
    CHECK_FALSE(is_taken);
    CHECK_FALSE(is_ready);
  }
}

TEST_CASE("plugin: what a net link's sender sent before it ended arrives, however late") {
  const Plugin plugin(net_plugin(8));
  const auto found = find_transports("net");
  REQUIRE(found);
  const Setting late("NET_PLUGIN_LATE", "3000");
  Pair p = make_pair(found.value()[0]);
  void* const slot = p.out.acquire();
  REQUIRE(slot != nullptr);
  memset(slot, 7, 8);
  p.out.publish(8, tuttiTag{});
  REQUIRE(until([&] { return poll_once(p.in) && poll_once(p.out) && p.out.unsent() == 0; }));
  tuttiMessage message{};
  REQUIRE_FALSE(p.in.peek(&message));
  p.out = {};
  Health health;
  CHECK(until([&] { return !(health = poll_once(p.in)) || p.in.peek(&message); }));
  CHECK(health);
  CHECK(message.bytes == 8);
}

TEST_CASE("plugin: what is no message of a net link ends it") {
  const Plugin plugin(net_plugin(8));
  const auto found = find_transports("net");
  REQUIRE(found);
  for (const char* byte : {"32", "40"}) {  // behind the tag: the message's number, its length
    CAPTURE(byte);
    const Setting spoils("NET_PLUGIN_SPOILS", byte);
    Pair p = make_pair(found.value()[0]);
    void* const slot = p.out.acquire();
    REQUIRE(slot != nullptr);
    memset(slot, 7, 8);
    p.out.publish(8, tuttiTag{});
    Health health;
    CHECK(until([&] {
      poll_once(p.out);
      return !(health = poll_once(p.in));
    }));
    CHECK(contains(health.error.text, "not a message of this link"));
  }
}
