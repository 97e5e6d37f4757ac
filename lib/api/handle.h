// api: the only C boundary. Checks arguments, turns results into codes and sentences, lets no exception out, and keeps
// dead handles from doing harm. This header: what the functions of tutti.h share.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "api/operators.h"
#include "base/result.h"
#include "comm/communicator.h"
#include "exec/stream.h"
#include "tutti/tutti.h"

namespace tutti::api {

// What a live handle stands for: the communicator, and what a program made for it.
struct Member {
  std::unique_ptr<Communicator> comm;
  Operators operators;
};

}  // namespace tutti::api

// What a handle points to. Never freed, so that a dead handle is recognised; a member is reachable while it is set here
// and is not destroyed while anyone uses it.
struct tuttiComm {
  static constexpr uint32_t kMagic = 0x7475636d;
  uint32_t magic = kMagic;
  std::atomic<int> users{0};
  std::atomic<tutti::api::Member*> member{nullptr};
};

namespace tutti::api {

// Keeps a communicator alive for the length of a call. False if the handle is not of a live communicator.
class Use {
 public:
  explicit Use(tuttiComm_t handle);
  Use(Use&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), member_(other.member_) {}
  Use& operator=(Use&&) = delete;
  ~Use();
  explicit operator bool() const { return member_ != nullptr; }
  Communicator* operator->() const { return member_->comm.get(); }
  Member& member() const { return *member_; }

 private:
  tuttiComm_t handle_;
  Member* member_ = nullptr;
};

Error not_a_comm(const void* handle);
tuttiComm_t make_handle(std::unique_ptr<Communicator> comm);
// Takes the member out of its handle: further uses fail. Null if somebody else was first.
std::unique_ptr<Member> detach(tuttiComm_t handle);
void wait_until_unused(tuttiComm_t handle);

Result<std::shared_ptr<Stream>> find_stream(tuttiStream_t handle);

// Remembers the error for tuttiGetLastError and gives its code.
tuttiResult_t finish(const Error& error);

// Runs the body of an API function. Allocation failures and other surprises become codes here.
template <class Body>
tuttiResult_t guarded(Body&& body) noexcept {
  try {
    const Result<void> result = body();
    return result ? tuttiSuccess : finish(result.error());
  } catch (const std::bad_alloc&) {
    return finish({Code::kSystemError, "out of memory"});
  } catch (const std::exception& e) {
    return finish({Code::kInternalError, std::string("unexpected: ") + e.what()});
  } catch (...) {
    return finish({Code::kInternalError, "unexpected exception"});
  }
}

inline Error invalid_argument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

}  // namespace tutti::api
