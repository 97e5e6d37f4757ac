#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

Result<std::unique_ptr<RecvLink>> RecvLink::create(const tuttiLinkConfig& config, std::vector<Fd> connections) {
  TUTTI_TRY_ASSIGN(SlotRing ring, SlotRing::create(config));
  std::unique_ptr<RecvLink> link(new RecvLink(config, std::move(ring)));
  std::vector<int> fds;
  for (Fd& fd : connections) {
    fds.push_back(fd.get());
    link->streams_.emplace_back().fd = std::move(fd);
  }
  TUTTI_TRY_ASSIGN(link->wait_set_, WaitSet::create(std::move(fds)));
  return link;
}

Result<bool> RecvLink::poll() {
  receive_all();
  // What arrived before a failure is still to be read.
  if (failure_ && received_ == released_) return *failure_;
  return true;
}

bool RecvLink::try_peek(tuttiMessage* message) {
  if (received_ == released_) return false;
  const Slot& slot = ring_[released_];
  *message = {slot.data, slot.header.bytes, slot.header.tag};
  return true;
}

void RecvLink::receive_all() {
  for (Stream& stream : streams_)
    while (!failure_ && !stream.closed && receive_some(stream)) {
    }
}

// One step of receiving; false when there is nothing more to be done now.
bool RecvLink::receive_some(Stream& stream) {
  if (!stream.in_frame) return read_header(stream);
  if (stream.to == nullptr) {
    if (!window_has(stream.header.number)) return false;
    place(stream);
  }
  const size_t left = stream.header.bytes - stream.got;
  if (left == 0) return end_frame(stream);
  return receive_into(stream, stream.to + stream.got, left, &stream.got);
}

// Takes a header from the stage, or fills the stage.
bool RecvLink::read_header(Stream& stream) {
  FrameHeader& header = stream.header;
  if (stream.staged() < sizeof header) {
    memmove(stream.stage.get(), stream.stage.get() + stream.stage_begin, stream.staged());
    stream.stage_end = stream.staged();
    stream.stage_begin = 0;
    const size_t wanted = stream.was_large ? sizeof header : kStageBytes;
    return receive_into(stream, stream.stage.get() + stream.stage_end, wanted - stream.stage_end, &stream.stage_end);
  }
  memcpy(&header, stream.stage.get() + stream.stage_begin, sizeof header);
  stream.stage_begin += sizeof header;
  const bool is_next = streams_.size() == 1 ? header.number == received_ : header.number >= received_;
  if (header.check != check_of(header) || header.bytes > config_.slot_bytes || !is_next ||
      (window_has(header.number) && ring_[header.number].done)) {
    fail("it sent something that is not a message: another program's data, or a bug");
    return false;
  }
  stream.in_frame = true;
  stream.was_large = header.bytes > kStageBytes;
  stream.to = nullptr;
  stream.got = 0;
  return true;
}

// There is a free slot for its message, so its payload may come: what is staged of it, at once.
void RecvLink::place(Stream& stream) {
  Slot& slot = ring_[stream.header.number];
  const bool is_expected = stream.header.number == expected_.number && stream.header.bytes == expected_.bytes;
  stream.to = is_expected ? expected_.to : slot.room;
  slot.header = stream.header;
  slot.data = stream.to;
  stream.got = std::min<size_t>(stream.staged(), stream.header.bytes);
  memcpy(stream.to, stream.stage.get() + stream.stage_begin, stream.got);
  stream.stage_begin += stream.got;
}

bool RecvLink::end_frame(Stream& stream) {
  ring_[stream.header.number].done = true;
  stream.in_frame = false;
  while (received_ - released_ < ring_.size() && ring_[received_].done) received_++;
  return true;
}

bool RecvLink::receive_into(Stream& stream, void* to, size_t room, size_t* got) {
  if (std::exchange(stream.drained, false)) return false;  // until the next poll
  for (;;) {
    const ssize_t n = ::recv(stream.fd.get(), to, room, MSG_DONTWAIT);
    if (n > 0) {
      *got += static_cast<size_t>(n);
      stream.drained = static_cast<size_t>(n) < room;
      return true;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n == 0)
      end_stream(stream);
    else
      fail(system_error("the connection broke", errno).message, errno);
    return false;
  }
}

// What the other connections hold comes before the failure.
void RecvLink::end_stream(Stream& stream) {
  stream.closed = true;
  if (!std::all_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.closed; })) return;
  const bool torn =
      std::any_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.in_frame || s.staged() > 0; });
  fail(torn ? "it closed the connection in the middle of a message: its process ended"
            : "it closed the connection: its process ended or its communicator was destroyed");
}

void RecvLink::fail(const std::string& why, int sys_errno) {
  failure_ = Error{Code::kRemoteError, format("tcp link from rank %d: %s", config_.peer, why.c_str()), config_.peer,
                   sys_errno};
}

// Nothing is written to the user's memory from now on.
void RecvLink::recall() {
  if (!failure_ && expected_.to != nullptr) fail("its operation has failed");
}

bool RecvLink::wait_begin(bool, tuttiWait* wait) {
  // What is staged already wakes nobody: it goes to the slots that have become free since the last poll.
  receive_all();
  // Who waits for a slot has something to read, which must not wake us.
  *wait = wait_set_.arm(POLLIN, [this](size_t i) {
    const Stream& s = streams_[i];
    return !s.closed && (!s.in_frame || s.to != nullptr);
  });
  return !failure_ && received_ == released_;
}

}  // namespace tutti::tcp
