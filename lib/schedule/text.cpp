#include "schedule/schedule.h"

namespace tutti {

std::string slice_text(const Slice& slice) {
  static constexpr const char* kNames[] = {"none", "in", "out", "scratch"};
  const auto index = static_cast<size_t>(slice.buffer);
  return format("%s[%u]", index < std::size(kNames) ? kNames[index] : "?", slice.chunk);
}

std::string step_text(const Step& step) {
  const bool has_local = step.local.buffer != Buffer::kNone;
  std::string text;
  if (step.before.buffer != Buffer::kNone) text = slice_text(step.before) + " + ";
  if (step.recv >= 0) text += format("recv %d", step.recv);
  if (step.recv == kEveryone) text += "recv all";
  if (step.recv != -1 && has_local) text += " + ";
  if (has_local) text += slice_text(step.local);
  if (step.store.buffer != Buffer::kNone) text += " -> " + slice_text(step.store);
  if (step.send >= 0) text += format(", send %d", step.send);
  if (step.completes) text += " (complete)";
  return text;
}

}  // namespace tutti
