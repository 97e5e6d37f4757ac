// A script's groups of calls, and its communicators.
#include "script.h"

namespace tutti::fuzz {

void Script::group() {
  const uint8_t which = in_.byte();
  const bool starts = which % 3 != 0;
  tuttiSimInfo_t info = TUTTI_SIM_INFO_INITIALIZER;
  if (which > 240) info.magic = in_.byte();
  const auto end = [&] {
    if (which < 128) return tuttiGroupEnd();
    return tuttiGroupSimulateEnd(which > 250 ? nullptr : &info);
  };
  const tuttiResult_t result = checked(starts ? tuttiGroupStart() : end());
  if (result == tuttiSuccess || !starts) depth_ = std::max(0, depth_ + (starts ? 1 : -1));
  expect(info.estimatedTime >= 0 || info.estimatedTime == -1, "an estimate is a time, or is not there");
}

void Script::ask() {
  const tuttiComm_t c = comm();
  int value = 0;
  int* to = in_.byte() > 250 ? nullptr : &value;
  tuttiResult_t state = tuttiSuccess;
  switch (in_.below(6)) {
    case 0:
      if (checked(tuttiCommCount(c, to)) == tuttiSuccess) expect(value > 0 && value <= n_ranks_, "a group has ranks");
      break;
    case 1:
      if (checked(tuttiCommUserRank(c, to)) == tuttiSuccess) expect(value >= 0 && value < n_ranks_, "a rank is one");
      break;
    case 2: checked(tuttiCommGetAsyncError(c, to == nullptr ? nullptr : &state)); break;
    case 3: checked(tuttiGetVersion(to)); break;
    case 4: expect(tuttiGetErrorString(any<tuttiResult_t>(number()))[0] != '\0', "every result has a name"); break;
    default: expect(tuttiGetLastError(c) != nullptr, "a sentence is never NULL");
  }
  expect(state < tuttiNumResults, "a state is a result");
}

// All ranks of the group in order or in reverse, or lists that are refused.
void Script::create_group() {
  leave_split();
  const uint8_t which = in_.byte();
  int ranks[] = {0, 1, 0, -1, 0, 0, 0};
  if (which % 2 == 0) std::reverse(ranks, ranks + n_ranks_);
  if (which > 200) ranks[in_.below(std::size(ranks))] = number();
  const int n = which > 150 ? std::min(number(), static_cast<int>(std::size(ranks))) : n_ranks_;
  checked(tuttiCommCreateGroup(member_.comm, which > 250 ? nullptr : ranks, n, &split_, config()));
}

// Creations that are refused.
void Script::create() {
  tuttiUniqueId id{};
  const std::string_view bytes = in_.text(4);
  memcpy(id.internal, bytes.data(), bytes.size());
  id.internal[0] = '\0';
  tuttiComm_t made = member_.comm;
  tuttiComm_t* to = in_.byte() > 240 ? nullptr : &made;
  const int devices[] = {-2};
  tuttiResult_t result = tuttiSuccess;
  const int n = number(), rank = number();
  tuttiUniqueId ids[] = {id, id};
  switch (in_.below(5)) {
    case 0: result = checked(tuttiCommInitRank(to, n, id, rank)); break;
    case 1: result = checked(tuttiCommInitRankConfig(to, n, id, rank, config())); break;
    case 2: result = checked(tuttiCommInitAll(to, in_.byte() % 2, devices)); break;
    case 3: result = checked(tuttiCommInitFromEnv(to, config())); break;
    default: result = checked(tuttiCommInitRankScalable(to, n, rank, in_.byte() % 3, ids, config()));
  }
  if (depth_ == 0)
    expect(result != tuttiSuccess, "nothing comes of an id that is none");
  else if (result == tuttiSuccess)
    leave_group();  // a creation in a group fails only at its end, and `made` must exist
  checked(tuttiGetUniqueId(nullptr));
}

void Script::leave_group() {
  while (depth_ > 0) {
    depth_--;
    checked(tuttiGroupEnd());
  }
}

// To make room for another one.
void Script::leave_split() {
  leave_group();
  checked(tuttiCommAbort(split_));
  split_ = nullptr;
  arena_ = &member_.arenas[0];
}

void Script::split() {
  leave_split();
  tuttiComm_t* to = in_.byte() > 250 ? nullptr : &split_;
  const int color = number(), key = number();
  checked(tuttiCommSplit(member_.comm, color, key, to, config()));
}

void Script::end_a_comm() {
  const uint8_t which = in_.byte();
  const tuttiComm_t c = which > 250 ? comm() : split_;
  switch (which % 3) {
    case 0: checked(tuttiCommFinalize(c)); break;
    case 1: checked(tuttiCommDestroy(c)); break;
    default: checked(tuttiCommAbort(c));
  }
}

// Excludes the last rank, which may call nevertheless; or uses lists that are refused.
void Script::shrink() {
  leave_split();
  const uint8_t which = in_.byte();
  int excluded[] = {n_ranks_ - 1, 0, -1};
  if (which > 200) excluded[in_.below(std::size(excluded))] = number();
  const int n = which > 150 ? std::min(number(), static_cast<int>(std::size(excluded))) : which % 2;
  const int flags = which % 64 == 5 ? number() : which % 64 == 7 ? TUTTI_SHRINK_ABORT : TUTTI_SHRINK_DEFAULT;
  if (n > 0 && rank_ == n_ranks_ - 1 && which % 4 != 3) return;
  checked(tuttiCommShrink(member_.comm, which > 250 ? nullptr : excluded, n, &split_, config(), flags));
}

}  // namespace tutti::fuzz
