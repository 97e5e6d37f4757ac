// An interpreter of PTX, for the text that nvcc makes of kernels/cuda. It runs grids on the CPU, 32 threads of a warp
// at a time, and traps what would crash on a GPU or go unnoticed there: accesses outside a launch's memory, misaligned
// ones, barriers that not all threads reach, races in shared memory and reads of uninitialised shared memory.
//
// This header: kernels in executable form. A register is a row of cells, one for each thread of a warp: 4 bytes wide,
// or 8 for 64-bit registers. Threading: code is immutable once it is parsed, except for the marks of what was run.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tutti_test::ptx {

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&);

inline constexpr uint32_t kLanes = 32;

enum class Kind : uint8_t { kPlain, kBranch, kBarrier, kShuffle, kReturn };
enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParameter };
enum class Order : uint8_t { kWeak, kRelaxed, kAcquire, kRelease };
enum class Scope : uint8_t { kBlock, kDevice, kSystem };

// A row of cells: `at` bytes into the warp's registers or the kernel's constants, which come in both widths.
struct Operand {
  uint32_t at = 0, narrow_at = 0;
  bool is_constant = false, is_wide = false;
};

inline constexpr int kMaxOperands = 6;
struct Instruction {
  Handler run = nullptr;
  Kind kind = Kind::kPlain;
  bool is_guarded = false, guard_negated = false;
  Operand guard;
  Operand operands[kMaxOperands];
  uint8_t n_operands = 0, n_results = 1;  // results come first
  // For memory accesses: the operands are the values that are read or written, then the address.
  Space space = Space::kGeneric;
  Order order = Order::kWeak;
  Scope scope = Scope::kSystem;
  uint8_t bytes = 0, n_values = 1;  // of each value, and how many
  bool is_signed = false;
  int64_t offset = 0;
  uint32_t target = 0;  // of a branch
  uint32_t line = 0;    // in the file
};

// Registers that every warp has, before all others.
inline constexpr uint32_t kNarrowRow = kLanes * 4, kWideRow = kLanes * 8;
inline constexpr uint32_t kThreadId = 0, kBlockId = kNarrowRow, kBlockSize = 2 * kNarrowRow, kGridSize = 3 * kNarrowRow;
inline constexpr uint32_t kParameters = 4 * kNarrowRow, kFirstRow = kParameters + kWideRow;

// Marks a register operand that assign_rows() has not seen yet; its number is added to this.
inline constexpr uint32_t kUnassigned = 1u << 31;
// Shared memory begins here in its own address space, so that no address in it is zero.
inline constexpr uint32_t kSharedBase = 256;

struct Parameter {
  uint32_t at = 0, bytes = 0;
};

struct Kernel {
  std::string name;
  std::string problem;  // the first thing that could not be parsed
  std::vector<Parameter> parameters;
  std::vector<Instruction> code;
  std::vector<std::string> text;  // of each instruction
  std::vector<char> constants;
  uint32_t parameter_bytes = 0, shared_bytes = 0, register_bytes = 0, most_threads = 1024;
  uint32_t least_blocks = 1;  // blocks that a multiprocessor holds at once
  std::unique_ptr<std::atomic<uint8_t>[]> was_run;

  size_t lines_run() const {
    size_t n = 0;
    for (size_t i = 0; i < code.size(); i++) n += was_run[i];
    return n;
  }
};

struct Module {
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::map<std::string, int> spellings;  // how often each occurs
  std::vector<std::string> problems;     // what could not be parsed, with its line

  // The kernel whose name contains this; null if none or several do.
  const Kernel* find(const std::string& part) const;
  void add_file(const std::string& path);
  void add_text(const std::string& text);
};

// Fills in what an instruction's spelling says; false if there is no such instruction.
bool decode(const std::string& spelling, Instruction* instruction);
// Gives rows to registers, which were numbered as they came; registers that are never live at the same time share one.
void assign_rows(Kernel* kernel, const std::vector<bool>& is_wide);

}  // namespace tutti_test::ptx
