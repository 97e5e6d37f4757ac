// Links without a peer: a test says what comes and what fails, and sees what the executor does with its end.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "transports/transport.h"

namespace tutti::test {

// One end; the other verbs do nothing. Lives longer than its Link.
struct MadeUpEnd {
  // What happens here, set by the test.
  std::deque<tuttiMessage> messages;  // `data` null: lent
  std::function<void()> on_peek;      // before each look for one
  const void* borrowed = nullptr;     // where a lent message can be read
  const char* fails_to_borrow = nullptr;
  const char* fails = nullptr;  // link_poll
  bool lends = false;
  void* place = nullptr;  // where the receiver expects the next message
  uint32_t place_bytes = 0;
  bool has_slot = true;
  uint32_t unsent = 0;
  int pushed = 2;          // what push returns
  bool may_sleep = false;  // what wait_begin returns

  // What the executor did.
  std::vector<std::string> sent;  // the bytes of what was published, lent or placed
  std::vector<const void*> lent_at;
  int recalls = 0, releases = 0, publishes = 0, expects = 0, expects_ahead = 0;
  bool placing = false;  // from place to publish or try_acquire

  std::vector<char> slot = std::vector<char>(256 << 10);
};

inline tuttiTransport made_up_transport() {
  static const auto end = [](tuttiLink* link) { return reinterpret_cast<MadeUpEnd*>(link); };
  static const auto fail = [](const char* why, tuttiTransportError* error) {
    if (why == nullptr) return tuttiSuccess;
    return report(Error{Code::kRemoteError, why}, error);
  };
  tuttiTransport table{TUTTI_TRANSPORT_ABI_VERSION, sizeof(tuttiTransport), "made-up"};
  table.link_poll = [](tuttiLink* link, tuttiTransportError* error) { return fail(end(link)->fails, error); };
  table.try_acquire = [](tuttiLink* link) -> void* {
    MadeUpEnd& e = *end(link);
    e.placing = false;
    return e.has_slot ? e.slot.data() : nullptr;
  };
  table.publish = [](tuttiLink* link, uint32_t bytes, const tuttiTag*) {
    MadeUpEnd& e = *end(link);
    e.publishes++;
    e.sent.emplace_back(std::exchange(e.placing, false) ? static_cast<char*>(e.place) : e.slot.data(), bytes);
  };
  table.push = [](tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag*) {
    end(link)->sent.emplace_back(static_cast<const char*>(data), bytes);
    return end(link)->pushed;
  };
  table.unsent = [](tuttiLink* link) { return end(link)->unsent; };
  table.try_peek = [](tuttiLink* link, tuttiMessage* message) {
    MadeUpEnd& e = *end(link);
    if (e.on_peek) e.on_peek();
    if (e.messages.empty()) return 0;
    *message = e.messages.front();
    return 1;
  };
  table.release = [](tuttiLink* link) {
    end(link)->releases++;
    end(link)->messages.pop_front();
  };
  table.wait_begin = [](tuttiLink* link, int, tuttiWait*) { return end(link)->may_sleep ? 1 : 0; };
  table.wait_end = [](tuttiLink*) {};
  table.link_close = [](tuttiLink*) {};
  table.expect = [](tuttiLink* link, void*, uint32_t) { end(link)->expects++; };
  table.expect_ahead = [](tuttiLink* link, uint32_t, void*, uint32_t) { end(link)->expects_ahead++; };
  table.lend = [](tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag*) {
    end(link)->lent_at.push_back(data);
    end(link)->sent.emplace_back(static_cast<const char*>(data), bytes);
    return 1;
  };
  table.can_lend = [](tuttiLink* link, const void*, uint32_t) { return end(link)->lends ? 1 : 0; };
  table.recall = [](tuttiLink* link) { end(link)->recalls++; };
  table.borrow = [](tuttiLink* link, const void** data, tuttiTransportError* error) {
    *data = end(link)->borrowed;
    return fail(end(link)->fails_to_borrow, error);
  };
  table.place = [](tuttiLink* link, uint32_t bytes) -> void* {
    MadeUpEnd& e = *end(link);
    e.placing = e.place != nullptr && e.place_bytes == bytes;
    return e.placing ? e.place : nullptr;
  };
  return table;
}

// Of the other side's rank `peer`.
inline Link made_up_link(MadeUpEnd& end, int peer) {
  static const tuttiTransport table = made_up_transport();
  const tuttiLinkConfig config{sizeof config, peer, 0, 4, 128 << 10};
  return Link(&table, reinterpret_cast<tuttiLink*>(&end), config);
}

}  // namespace tutti::test
