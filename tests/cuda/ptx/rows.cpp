// Which row of cells each register of a kernel gets: nvcc gives every value its own register, thousands in all, of
// which few are live at the same time.
#include <algorithm>

#include "code.h"

namespace tutti_test::ptx {
namespace {

struct RegisterSet {
  explicit RegisterSet(size_t n = 0) : words((n + 63) / 64) {}
  bool operator[](size_t i) const { return (words[i / 64] >> i % 64 & 1) != 0; }
  void set(size_t i) { words[i / 64] |= uint64_t{1} << i % 64; }
  std::vector<uint64_t> words;
};

bool is_register(const Operand& operand) {
  return !operand.is_constant && operand.at >= kUnassigned;
}
uint32_t number_of(const Operand& operand) {
  return operand.at - kUnassigned;
}

// Calls use(register) and result(register) of an instruction, uses first.
template <class Use, class Result>
void visit(const Instruction& i, Use&& use, Result&& result) {
  if (i.is_guarded && is_register(i.guard)) use(number_of(i.guard));
  for (int o = i.n_results; o < i.n_operands; o++)
    if (is_register(i.operands[o])) use(number_of(i.operands[o]));
  for (int o = 0; o < std::min(i.n_results, i.n_operands); o++) {
    if (!is_register(i.operands[o])) continue;
    if (i.is_guarded) use(number_of(i.operands[o]));  // a guarded instruction may keep the old value
    result(number_of(i.operands[o]));
  }
}

// A basic block: it begins at a branch target and ends with a branch.
struct Stretch {
  uint32_t begin = 0, end = 0;
  std::vector<uint32_t> next;
  RegisterSet used, made, live_in, live_out;
};

std::vector<Stretch> stretches_of(const Kernel& kernel) {
  const auto n = static_cast<uint32_t>(kernel.code.size());
  std::vector<bool> begins(n + 1);
  begins[0] = true;
  for (uint32_t i = 0; i < n; i++) {
    if (kernel.code[i].kind == Kind::kBranch) begins[kernel.code[i].target] = begins[i + 1] = true;
    if (kernel.code[i].kind == Kind::kReturn) begins[i + 1] = true;
  }
  std::vector<Stretch> all;
  std::vector<uint32_t> at(n + 1);
  for (uint32_t i = 0; i < n; i++) {
    if (begins[i]) all.emplace_back().begin = i;
    all.back().end = i + 1;
    at[i] = static_cast<uint32_t>(all.size() - 1);
  }
  for (Stretch& s : all) {
    const Instruction& last = kernel.code[s.end - 1];
    if (last.kind == Kind::kBranch) s.next.push_back(at[last.target]);
    const bool goes_on = last.is_guarded || (last.kind != Kind::kBranch && last.kind != Kind::kReturn);
    if (goes_on && s.end < n) s.next.push_back(at[s.end]);
  }
  return all;
}

// What is live at the beginning of a successor is live at the end of a stretch. True if that adds anything.
bool take(const Stretch& next, Stretch* s) {
  bool changed = false;
  for (size_t w = 0; w < next.live_in.words.size(); w++) {
    const uint64_t news = next.live_in.words[w] & ~s->live_out.words[w];
    s->live_out.words[w] |= news;
    s->live_in.words[w] |= news & ~s->made.words[w];
    changed = changed || news != 0;
  }
  return changed;
}

void find_live(const Kernel& kernel, size_t n_registers, std::vector<Stretch>* all) {
  for (Stretch& s : *all) {
    s.used = s.made = s.live_out = RegisterSet(n_registers);
    for (uint32_t i = s.begin; i < s.end; i++)
      visit(
          kernel.code[i],
          [&](uint32_t r) {
            if (!s.made[r]) s.used.set(r);
          },
          [&](uint32_t r) { s.made.set(r); });
    s.live_in = s.used;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (auto s = all->rbegin(); s != all->rend(); ++s)
      for (const uint32_t next : s->next) changed = take((*all)[next], &*s) || changed;
  }
}

struct Life {
  uint32_t number = 0, first = ~0u, last = 0;
  void add(uint32_t at) { first = std::min(first, at), last = std::max(last, at); }
};

std::vector<Life> lives_of(const Kernel& kernel, size_t n_registers) {
  auto stretches = stretches_of(kernel);
  find_live(kernel, n_registers, &stretches);
  std::vector<Life> lives(n_registers);
  for (uint32_t r = 0; r < n_registers; r++) lives[r].number = r;
  for (const Stretch& s : stretches) {
    for (uint32_t r = 0; r < n_registers; r++) {
      if (s.live_in[r]) lives[r].add(s.begin);
      if (s.live_out[r]) lives[r].add(s.end);
    }
    for (uint32_t i = s.begin; i < s.end; i++)
      visit(
          kernel.code[i], [&](uint32_t r) { lives[r].add(i); }, [&](uint32_t r) { lives[r].add(i); });
  }
  return lives;
}

}  // namespace

void assign_rows(Kernel* kernel, const std::vector<bool>& is_wide) {
  auto lives = lives_of(*kernel, is_wide.size());
  std::sort(lives.begin(), lives.end(), [](const Life& a, const Life& b) { return a.first < b.first; });
  std::vector<uint32_t> row(is_wide.size());
  std::vector<uint32_t> free_rows[2];
  std::vector<Life> living;
  kernel->register_bytes = kFirstRow;
  for (const Life& life : lives) {
    for (size_t i = 0; i < living.size();) {
      if (living[i].last >= life.first) {
        i++;
        continue;
      }
      free_rows[is_wide[living[i].number]].push_back(row[living[i].number]);
      living[i] = living.back();
      living.pop_back();
    }
    auto& rows = free_rows[is_wide[life.number]];
    if (rows.empty()) {
      rows.push_back(kernel->register_bytes);
      kernel->register_bytes += is_wide[life.number] ? kWideRow : kNarrowRow;
    }
    row[life.number] = rows.back();
    rows.pop_back();
    living.push_back(life);
  }
  const auto assign = [&](Operand& o) {
    if (is_register(o)) o.at = o.narrow_at = row[number_of(o)];
  };
  for (Instruction& i : kernel->code) {
    assign(i.guard);
    for (int o = 0; o < i.n_operands; o++) assign(i.operands[o]);
  }
}

}  // namespace tutti_test::ptx
