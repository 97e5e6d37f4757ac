// Streams and events.
#include <chrono>
#include <future>

#include "api/handle.h"
#include "base/at_fork.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

// Handles are numbers that are given out once, cast to pointers; the tables below map them to objects.
struct tuttiStream {};
struct tuttiEvent {};

namespace {

// Streams and events share the numbers, so that one is not taken for the other; small numbers are no handles. In a
// forked child, numbers given out before the fork belong to the parent.
constexpr uintptr_t kFirstNumber = 1 << 20;
std::atomic<uintptr_t> g_given{kFirstNumber}, g_of_parent{kFirstNumber};

// The live streams or events, by handle. A call shares ownership of the object, so that destroying the handle meanwhile
// does no harm. The table is never destroyed: other threads may outlive main.
template <class Handle, class Thing>
class Live {
 public:
  explicit Live(const char* name) : name_(name) {
    do_in_children([] { g_of_parent.store(g_given.load()); });
  }

  void add(Handle** handle, std::shared_ptr<Thing> thing) {
    auto* fresh = reinterpret_cast<Handle*>(++g_given);
    const std::lock_guard lock(mutex_);
    things_[fresh] = std::move(thing);
    *handle = fresh;
  }
  Result<std::shared_ptr<Thing>> find(Handle* handle) { return look(handle, false); }
  Result<std::shared_ptr<Thing>> remove(Handle* handle) { return look(handle, true); }
  // Those of this process: in a forked child a lock of the parent's may be held for ever.
  std::vector<std::shared_ptr<Thing>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Thing>> all;
    for (const auto& [handle, thing] : things_)
      if (!is_of_parent(handle)) all.push_back(thing);
    return all;
  }

 private:
  Result<std::shared_ptr<Thing>> look(Handle* handle, bool erase) {
    const std::lock_guard lock(mutex_);
    const auto found = things_.find(handle);
    if (found == things_.end())
      return invalid_argument(handle == nullptr
                                  ? format("%s is NULL", name_)
                                  : format("%s=%p is not a live %s", name_, static_cast<void*>(handle), name_));
    if (is_of_parent(handle)) return api::is_of_parent(name_, handle);
    auto thing = found->second;
    if (erase) things_.erase(found);
    return thing;
  }

  static bool is_of_parent(const Handle* handle) { return reinterpret_cast<uintptr_t>(handle) <= g_of_parent; }

  const char* name_;
  MutexAcrossForks mutex_;
  std::map<Handle*, std::shared_ptr<Thing>> things_;
};

Live<tuttiStream, Stream>& g_streams = *new Live<tuttiStream, Stream>("stream");

// A point in a stream that other streams and threads can wait for, even after its event has moved on or is gone.
using Point = std::shared_future<void>;

Point reached_point() {
  std::promise<void> reached;
  reached.set_value();
  return reached.get_future();
}

class Event {
 public:
  // Later waits are for this point.
  void move_to(Point point) {
    const std::lock_guard lock(mutex_);
    point_ = std::move(point);
  }
  Point point() const {
    const std::lock_guard lock(mutex_);
    return point_;
  }

 private:
  mutable std::mutex mutex_;
  Point point_ = reached_point();
};

Live<tuttiEvent, Event>& g_events = *new Live<tuttiEvent, Event>("event");

Result<void> create_stream(tuttiStream_t* handle) {
  if (handle == nullptr) return invalid_argument("stream is NULL");
  *handle = nullptr;
  TUTTI_TRY_ASSIGN(auto stream, Stream::create());
  g_streams.add(handle, std::move(stream));
  return {};
}

Result<void> add_callback(tuttiStream_t handle, tuttiStreamCallback_t callback, void* user_data) {
  if (callback == nullptr) return invalid_argument("callback is NULL");
  TUTTI_TRY_ASSIGN(const auto stream, g_streams.find(handle));
  // The stream owns and outlives this work, so a raw pointer is safe; a shared one would be a reference cycle.
  stream->enqueue([handle, callback, user_data, s = stream.get()]() -> Result<void> {
    callback(handle, guarded([s] { return s->so_far(); }), user_data);
    return {};
  });
  return {};
}

// With no stream everything is done when a call returns, so the event is reached at once.
Result<void> record(tuttiEvent_t event_handle, tuttiStream_t stream_handle) {
  TUTTI_TRY_ASSIGN(const auto event, g_events.find(event_handle));
  if (stream_handle == nullptr) {
    event->move_to(reached_point());
    return {};
  }
  TUTTI_TRY_ASSIGN(const auto stream, g_streams.find(stream_handle));
  const auto reached = std::make_shared<std::promise<void>>();
  stream->enqueue([reached]() -> Result<void> {
    reached->set_value();
    return {};
  });
  event->move_to(reached->get_future());
  return {};
}

Result<void> wait_event(tuttiStream_t stream_handle, tuttiEvent_t event_handle) {
  TUTTI_TRY_ASSIGN(const auto event, g_events.find(event_handle));
  const Point point = event->point();
  if (stream_handle == nullptr) {
    point.wait();
    return {};
  }
  TUTTI_TRY_ASSIGN(const auto stream, g_streams.find(stream_handle));
  stream->enqueue([point]() -> Result<void> {
    point.wait();
    return {};
  });
  return {};
}

}  // namespace

Result<std::shared_ptr<Stream>> tutti::api::find_stream(tuttiStream_t handle) {
  return g_streams.find(handle);
}

void tutti::api::end_queued(tuttiComm_t comm) {
  const auto instead = []() -> Result<void> {
    return Error{
        Code::kInvalidUsage,
        "tuttiCommAbort, tuttiCommRevoke, or tuttiCommShrink with TUTTI_SHRINK_ABORT, was called on this rank"};
  };
  std::map<uint64_t, Stream::Work> taken;
  (void)contained([&]() -> Result<void> {
    for (const auto& stream : g_streams.all()) stream->take_out(comm, instead, &taken);
    return {};
  });
  for (const auto& [ticket, work] : taken) (void)work();  // each at its turn, because others may wait for these turns
}

extern "C" {

tuttiResult_t tuttiStreamCreate(tuttiStream_t* stream) {
  return guarded([&] { return create_stream(stream); });
}

tuttiResult_t tuttiStreamSynchronize(tuttiStream_t stream) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(const auto found, g_streams.find(stream));
    return found->synchronize();
  });
}

tuttiResult_t tuttiStreamQuery(tuttiStream_t stream) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(const auto found, g_streams.find(stream));
    return found->query();
  });
}

tuttiResult_t tuttiStreamDestroy(tuttiStream_t stream) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(const auto found, g_streams.remove(stream));
    return found->synchronize();
  });
}

tuttiResult_t tuttiStreamAddCallback(tuttiStream_t stream, tuttiStreamCallback_t callback, void* userData) {
  return guarded([&] { return add_callback(stream, callback, userData); });
}

tuttiResult_t tuttiStreamWaitEvent(tuttiStream_t stream, tuttiEvent_t event) {
  return guarded([&] { return wait_event(stream, event); });
}

tuttiResult_t tuttiEventCreate(tuttiEvent_t* event) {
  return guarded([&]() -> Result<void> {
    if (event == nullptr) return invalid_argument("event is NULL");
    g_events.add(event, std::make_shared<Event>());
    return {};
  });
}

tuttiResult_t tuttiEventRecord(tuttiEvent_t event, tuttiStream_t stream) {
  return guarded([&] { return record(event, stream); });
}

tuttiResult_t tuttiEventQuery(tuttiEvent_t event) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(const auto found, g_events.find(event));
    if (found->point().wait_for(std::chrono::seconds(0)) == std::future_status::ready) return {};
    return Error{Code::kInProgress, "the stream has not reached this event"};
  });
}

tuttiResult_t tuttiEventSynchronize(tuttiEvent_t event) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(const auto found, g_events.find(event));
    found->point().wait();
    return {};
  });
}

tuttiResult_t tuttiEventDestroy(tuttiEvent_t event) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY(g_events.remove(event));
    return {};
  });
}

}  // extern "C"
