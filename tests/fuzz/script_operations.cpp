// A script's operations.
#include "script.h"

namespace tutti::fuzz {

void Script::reduce_all() {
  const uint8_t which = in_.byte();
  const tuttiComm_t c = comm();
  const char* from = buffer();
  char* to = buffer();
  const size_t n = count();
  const auto t = type();
  const auto o = reduction();
  if (which % 16 == 15) {
    const auto wire = any<tuttiDataType_t>(in_.byte() % 2 == 0 ? int{tuttiInt8} : int{in_.byte()});
    const size_t block = in_.byte() % 8 == 0 ? in_.byte() : size_t{64} << in_.byte() % 3;
    char* const errors = in_.byte() % 2 == 0 ? nullptr : buffer();
    checked(tuttiAllReduceQuantized(from, to, n, tuttiFloat32, o, wire, block, errors, c, stream_handle()));
    return;
  }
  if (which % 3 == 0) checked(tuttiAllReduce(from, to, n, t, o, c, stream_handle()));
  if (which % 3 == 1) checked(tuttiReduceScatter(from, to, n, t, o, c, stream_handle()));
  if (which % 3 == 2) {
    const int root = number();
    checked(tuttiReduce(from, to, n, t, o, root, c, stream_handle()));
  }
}

void Script::move() {
  const uint8_t which = in_.byte();
  const tuttiComm_t c = comm();
  const char* from = buffer();
  char* to = buffer();
  const size_t n = count();
  const auto t = type();
  const int root = number();
  const auto s = stream_handle();
  switch (which % 7) {
    case 0: checked(tuttiBroadcast(from, to, n, t, root, c, s)); break;
    case 1: checked(tuttiBcast(to, n, t, root, c, s)); break;
    case 2: checked(tuttiAllGather(from, to, n, t, c, s)); break;
    case 3: checked(tuttiAlltoAll(from, to, n, t, c, s)); break;
    case 4: checked(tuttiGather(from, to, n, t, root, c, s)); break;
    case 5: checked(tuttiScatter(from, to, n, t, root, c, s)); break;
    default: checked(tuttiBarrier(c, s));
  }
}

// Matching messages: to the rank `distance` further on, from the one as far back. In a separate group.
void Script::exchange() {
  const tuttiComm_t c = comm();
  const int distance = in_.byte() % 2, times = 1 + in_.byte() % 3;
  const int to = (rank_ + distance) % n_ranks_, from = (rank_ + n_ranks_ - distance) % n_ranks_;
  checked(tuttiGroupStart());
  for (int i = 0; i < times; i++) {
    const size_t n = in_.byte();
    const auto t = any<tuttiDataType_t>(in_.byte() % tuttiNumTypes);
    checked(tuttiSend(arena_->at(in_.byte()), n, t, to, c, nullptr));
    checked(tuttiRecv(arena_->at(kOffsets + in_.byte()), n, t, from, c, nullptr));
  }
  checked(tuttiGroupEnd());
}

void Script::unequal() {
  std::array<size_t, 4> counts{}, displs{}, other_displs{};
  const uint8_t which = in_.byte();
  const tuttiComm_t c = comm();
  const bool huge = which > 250;
  for (size_t i = 0; i < counts.size(); i++) {
    counts[i] = huge ? count() : in_.byte() % 64;
    displs[i] = in_.byte() % 192;
    other_displs[i] = in_.byte() % 192;
  }
  const char* from = buffer();
  char* to = buffer();
  const size_t* lists[] = {counts.data(), displs.data(), nullptr};
  const auto list = [&](size_t usual) { return lists[in_.byte() > 250 ? 2 : usual]; };
  const size_t* n = list(0);
  const size_t* at = list(1);
  const auto t = type();
  // All-to-all counts are equal, so that receives match, but the places differ.
  if (which % 3 == 2) counts.fill(counts[0]);
  if (which % 3 == 0) checked(tuttiAllGatherv(from, to, n, at, t, c, stream_handle()));
  if (which % 3 == 1) checked(tuttiReduceScatterv(from, to, n, t, reduction(), c, stream_handle()));
  if (which % 3 == 2) checked(tuttiAlltoAllv(from, n, at, to, n, other_displs.data(), t, c, stream_handle()));
}

// A message that is refused.
void Script::message() {
  const uint8_t wrong = in_.byte();
  const tuttiComm_t c = wrong % 4 == 0 ? nullptr : comm();
  const int peer = wrong % 4 == 1 ? n_ranks_ + in_.byte() : -1 - in_.byte();
  const auto t = wrong % 4 == 2 ? any<tuttiDataType_t>(tuttiNumTypes + in_.byte()) : type();
  const bool sends = in_.byte() % 2 == 0;
  char* data = buffer();
  const size_t n = count();
  const auto s = stream_handle();
  checked(sends ? tuttiSend(data, n, t, peer, c, s) : tuttiRecv(data, n, t, peer, c, s));
}

}  // namespace tutti::fuzz
