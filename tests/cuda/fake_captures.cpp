// Events and captures of the made-up runtime, as strict as CUDA: the programming guide's "Prohibited and Unhandled
// Operations", and what the reference says of each of cudaError's numbers from 900 to 907.
#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "fake.h"

namespace tutti_test {

using namespace tutti;
using namespace tutti::cuda;

namespace {

enum : int {
  kIllegalState = 401,
  kNotReady = 600,
  kUnsupported = 900,
  kInvalidated = 901,
  kMerge = 902,
  kUnmatched = 903,
  kUnjoined = 904,
  kIsolation = 905,
  kImplicit = 906,
  kCapturedEvent = 907
};

FakeEvent& event_of(EventRef event) {
  return *static_cast<FakeEvent*>(event);
}

std::shared_future<void> point_of(const FakeEvent& event) {
  const std::lock_guard lock(event.mutex);
  return event.point;
}

Error spoil(FakeCapture& capture, const char* why, int code) {
  capture.is_spoilt = true;
  return refuse(why, code);
}

}  // namespace

// The default stream synchronises with all blocking streams.
bool FakePort::would_join_legacy(StreamRef stream, bool spoils) {
  if (stream != nullptr) return false;
  const int device = stream_of(stream).device;
  const std::lock_guard lock(mutex_);
  bool would = false;
  for (const FakeStream* other : blocking_streams_) {
    if (other->device != device || other->capture == nullptr) continue;
    would = true;
    if (spoils) other->capture->is_spoilt = true;
  }
  return would;
}

Result<void> FakePort::check_use(StreamRef stream) {
  if (would_join_legacy(stream, true))
    return refuse("the legacy stream would depend on a capturing blocking stream", kImplicit);
  const auto& capture = stream_of(stream).capture;
  if (capture != nullptr && capture->is_spoilt) return refuse("this stream's capture is invalid", kInvalidated);
  return {};
}

Result<void> FakePort::check_question(StreamRef stream) {
  TUTTI_TRY(check_use(stream));
  const auto& capture = stream_of(stream).capture;
  if (capture != nullptr) return spoil(*capture, "a capturing stream cannot be asked or waited for", kUnsupported);
  return {};
}

Result<void> FakePort::record(EventRef event, StreamRef stream) {
  TUTTI_TRY(check_use(stream));
  FakeEvent& e = event_of(event);
  const FakeStream& s = stream_of(stream);
  const auto reached = std::make_shared<std::promise<void>>();
  {
    const std::lock_guard lock(e.mutex);
    e.captured_in = s.capture;
    e.past = s.past;
    if (s.capture != nullptr) return {};
    e.point = reached->get_future();
  }
  return enqueue(stream, [&e, reached] {
    e.reached_ns = now_ns();
    reached->set_value();
  });
}

// A stream that waits for captured work joins the capture.
Result<void> FakePort::wait(StreamRef stream, EventRef event) {
  TUTTI_TRY(check_use(stream));
  const FakeEvent& e = event_of(event);
  FakeStream& s = stream_of(stream);
  const std::lock_guard no_record(e.mutex);
  const auto& capture = e.captured_in;
  if (capture == nullptr) {
    if (s.capture != nullptr)
      return spoil(*s.capture, "a capturing stream cannot wait for an event that is not captured", kIsolation);
    return enqueue(stream, [point = e.point] {
      if (point.valid()) point.wait();
    });
  }
  if (capture->is_over) return refuse("this event was captured, and the capture is over", kCapturedEvent);
  if (capture->is_spoilt) return refuse("this event's capture is invalid", kInvalidated);
  if (s.capture != nullptr && s.capture != capture) {
    capture->is_spoilt = true;
    return spoil(*s.capture, "two captures cannot be merged", kMerge);
  }
  const std::lock_guard lock(mutex_);
  if (s.capture == nullptr) capture->streams.push_back(&s);
  s.capture = capture;
  s.past.insert(e.past.begin(), e.past.end());
  return {};
}

Result<bool> FakePort::reached(EventRef event) {
  const FakeEvent& e = event_of(event);
  strays += !has_device();
  const auto captured_in = [&e] {
    const std::lock_guard lock(e.mutex);
    return e.captured_in;
  }();
  if (captured_in != nullptr) return spoil(*captured_in, "this event was captured", kCapturedEvent);
  if (throws_in_queries > 0 && throws_in_queries-- > 0) throw std::bad_alloc();
  if (refuses_queries) return refuse("operation not permitted when stream is capturing", kUnsupported);
  const auto point = point_of(e);
  return !point.valid() || point.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

Result<double> FakePort::seconds_between(EventRef from, EventRef to) {
  for (const EventRef event : {from, to})
    if (!point_of(event_of(event)).valid() || !reached(event).value()) return refuse("device not ready", kNotReady);
  return static_cast<double>(event_of(to).reached_ns - event_of(from).reached_ns) / 1e9;
}

Result<bool> FakePort::is_capturing(StreamRef stream) {
  if (would_join_legacy(stream, false)) return refuse("a blocking stream is capturing", kImplicit);
  const auto& capture = stream_of(stream).capture;
  if (capture != nullptr && capture->is_spoilt) return Error{Code::kInvalidUsage, "this stream's capture is invalid"};
  return capture != nullptr;
}

void FakePort::begin_capture(StreamRef stream, FakeGraph* graph) {
  FakeStream& s = stream_of(stream);
  const std::lock_guard lock(mutex_);
  s.capture = captures_.emplace_back(std::make_shared<FakeCapture>());
  s.capture->graph = graph;
  s.capture->streams.push_back(&s);
}

Result<void> FakePort::end_capture(StreamRef stream) {
  const FakeStream& s = stream_of(stream);
  const auto capture = s.capture;
  if (capture == nullptr) return refuse("this stream does not capture", kIllegalState);
  if (capture->streams[0] != &s) return spoil(*capture, "this capture began in another stream", kUnmatched);
  const bool has_all = s.past.size() == capture->graph->works.size();
  end_capture(capture->graph);
  if (capture->is_spoilt) return refuse("the capture had become invalid", kInvalidated);
  if (!has_all) return refuse("work of another stream was not joined to the capture's own", kUnjoined);
  return {};
}

void FakePort::end_capture(FakeGraph* graph) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(captures_.begin(), captures_.end(), [&](const auto& c) { return c->graph == graph; });
  if (found == captures_.end()) return;
  (*found)->is_over = true;
  for (FakeStream* stream : (*found)->streams) {
    stream->capture.reset();
    stream->past.clear();
  }
  captures_.erase(found);
}

Result<void> FakePort::launch(const FakeGraph& graph, StreamRef stream) {
  for (const auto& work : graph.works) TUTTI_TRY(enqueue(stream, work));
  return {};
}

}  // namespace tutti_test
