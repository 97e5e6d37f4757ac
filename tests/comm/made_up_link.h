// Links without a peer: a test chooses what arrives and what fails, and sees what the executor does with its end.
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
  // What happens at this end, set by the test.
  std::deque<tuttiMessage> messages;  // `data` null: exposed
  std::function<void()> on_peek;      // called before each look for a message
  const void* exposed = nullptr;      // where an exposed message can be read
  const char* fails_to_read = nullptr;
  const char* fails = nullptr;  // link_poll
  uint32_t culprit_plus_1 = 0;  // the rank that caused that failure
  bool exposes = false;
  bool exposes_in_vain = false;          // an exposed message is never read
  const void* private_memory = nullptr;  // which cannot be exposed
  void* place = nullptr;                 // the receiver's buffer for the next message
  uint32_t place_bytes = 0;
  bool has_slot = true;
  uint32_t unsent = 0;
  int pushed = 2;          // what push returns
  bool may_sleep = false;  // what wait_begin returns
  tuttiWait wait{-1};      // what wait_begin reports

  // What the executor did.
  std::vector<std::string> sent;  // the bytes of each published message, wherever they were
  std::vector<const void*> exposed_at;
  int revokes = 0, releases = 0, publishes = 0, posts = 0, posts_ahead = 0;
  int sleeps = 0;
  bool asleep = false;  // between wait_begin and wait_end
  int polls_asleep = 0;
  bool placing = false;  // between acquire and publish, in the receiver's buffer

  std::vector<char> slot = std::vector<char>(256 << 10);
};

inline tuttiTransport made_up_transport() {
  static const auto end = [](tuttiLink* link) { return reinterpret_cast<MadeUpEnd*>(link); };
  static const auto fail = [](const char* why, tuttiTransportError* error) {
    if (why == nullptr) return tuttiSuccess;
    return report(Error{Code::kRemoteError, why}, error);
  };
  tuttiTransport table{TUTTI_TRANSPORT_ABI_VERSION, sizeof(tuttiTransport), "made-up"};
  table.link_poll = [](tuttiLink* link, tuttiLinkState* state, tuttiTransportError* error) {
    end(link)->polls_asleep += end(link)->asleep;
    if (state != nullptr) state->unsent = end(link)->unsent, state->culprit_plus_1 = end(link)->culprit_plus_1;
    return fail(end(link)->fails, error);
  };
  table.acquire = [](tuttiLink* link, const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
    MadeUpEnd& e = *end(link);
    e.placing = posting == TUTTI_IF_POSTED && e.place != nullptr && e.place_bytes == bytes;
    *at = e.placing ? e.place : e.slot.data();
    if (!e.has_slot) return TUTTI_NO_ROOM;
    return e.placing                                                  ? TUTTI_POSTED
           : e.exposes && data != nullptr && data != e.private_memory ? TUTTI_EXPOSED
                                                                      : TUTTI_SLOT;
  };
  table.publish = [](tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag*) {
    MadeUpEnd& e = *end(link);
    if (data != nullptr && e.exposes_in_vain) return 0;
    if (data != nullptr) {
      e.exposed_at.push_back(data);
      e.sent.emplace_back(static_cast<const char*>(data), bytes);
      return 1;
    }
    e.publishes++;
    e.sent.emplace_back(std::exchange(e.placing, false) ? static_cast<char*>(e.place) : e.slot.data(), bytes);
    return 1;
  };
  table.push = [](tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag*) {
    end(link)->sent.emplace_back(static_cast<const char*>(data), bytes);
    return end(link)->pushed;
  };
  table.peek = [](tuttiLink* link, tuttiMessage* message) {
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
  table.wait_begin = [](tuttiLink* link, tuttiWait* wait) {
    *wait = end(link)->wait;
    end(link)->asleep = true;
    end(link)->sleeps++;
    return end(link)->may_sleep ? 1 : 0;
  };
  table.wait_end = [](tuttiLink* link) { end(link)->asleep = false; };
  table.link_close = [](tuttiLink*) {};
  table.revoke = [](tuttiLink* link) { end(link)->revokes++; };
  table.read = [](tuttiLink* link, const void** data, tuttiTransportError* error) {
    *data = end(link)->exposed;
    return fail(end(link)->fails_to_read, error);
  };
  table.post = [](tuttiLink* link, uint32_t ahead, void*, uint32_t, int) {
    ++(ahead > 0 ? end(link)->posts_ahead : end(link)->posts);
    return 1;
  };
  return table;
}

// A link to rank `peer`.
inline Link made_up_link(MadeUpEnd& end, int peer) {
  static const tuttiTransport table = made_up_transport();
  const tuttiLinkConfig config{sizeof config, peer, 0, 4, 128 << 10};
  return Link(&table, reinterpret_cast<tuttiLink*>(&end), config);
}

}  // namespace tutti::test
