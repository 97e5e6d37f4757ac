#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "base/at_fork.h"
#include "base/file.h"
#include "base/limits.h"

namespace tutti {
namespace {

// Never destroyed: other threads may outlive main.
struct Table {
  MutexAcrossForks mutex;
  std::vector<std::shared_ptr<const SharedBlock>> blocks;  // ascending ids
  std::map<void*, uint64_t> allocated;                     // ids
  uint64_t last_id = 0, last_of_parent = 0;
  std::atomic<uint64_t> removals{0};

  std::shared_ptr<const SharedBlock> add(uintptr_t begin, size_t bytes, Fd fd, uint64_t offset,
                                         bool is_device = false) {
    blocks.push_back(std::make_shared<const SharedBlock>(
        SharedBlock{++last_id, begin, begin + bytes, std::move(fd), offset, is_device}));
    return blocks.back();
  }
  template <class Wanted>
  std::shared_ptr<const SharedBlock> find(Wanted&& wanted) {
    const std::lock_guard lock(mutex);
    for (const auto& block : blocks)
      if (wanted(*block)) return block;
    return nullptr;
  }
  std::shared_ptr<const SharedBlock> take(uint64_t id) {
    const auto at = std::find_if(blocks.begin(), blocks.end(), [&](const auto& b) { return b->id == id; });
    if (at == blocks.end()) return nullptr;
    auto block = *at;
    blocks.erase(at);
    removals.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
};
Table& g_table = *new Table;
[[maybe_unused]] const bool g_parents_are_known = do_in_children([] { g_table.last_of_parent = g_table.last_id; });

// What /proc/self/maps says about an address.
struct Mapping {
  uintptr_t begin = 0, end = 0;
  bool shared = false;
  uint64_t offset = 0;
  dev_t device = 0;
  ino_t inode = 0;
};

Result<Mapping> find_mapping(uintptr_t at) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return system_error("reading /proc/self/maps", errno);
  Mapping m;
  bool is_found = false;
  char line[4400];
  while (!is_found && fgets(line, sizeof line, maps) != nullptr) {
    char permissions[8] = "";
    unsigned major_number = 0, minor_number = 0;
    uint64_t inode = 0;
    const int n_fields = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %" SCNx64 " %x:%x %" SCNu64, &m.begin, &m.end,
                                permissions, &m.offset, &major_number, &minor_number, &inode);
    is_found = n_fields == 7 && at >= m.begin && at < m.end;
    m.shared = permissions[3] == 's';
    m.device = makedev(major_number, minor_number);
    m.inode = inode;
  }
  fclose(maps);
  return is_found ? m : Mapping{};
}

// A new descriptor of the file behind a mapping: through the kernel's link to it if permitted, else a duplicate of any
// descriptor of this process that is open on it.
Fd open_file_behind(const Mapping& mapping) {
  const std::string link = format("/proc/self/map_files/%" PRIxPTR "-%" PRIxPTR, mapping.begin, mapping.end);
  if (Fd fd(open(link.c_str(), O_RDWR | O_CLOEXEC)); fd) return fd;
  for (const std::string& entry : entries_of("/proc/self/fd")) {
    const int fd = atoi(entry.c_str());
    struct stat info {};
    if (fstat(fd, &info) == 0 && info.st_dev == mapping.device && info.st_ino == mapping.inode)
      return Fd(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  }
  return {};
}

}  // namespace

Result<Fd> sealed_memory(const char* name, size_t bytes) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error("memfd_create for shared memory", errno);
  const NoWriteSignal quiet;
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return system_error(format("allocating %zu bytes of shared memory", bytes), errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error("sealing shared memory", errno);
  return fd;
}

bool has_pages(const Fd& file, uint64_t offset, uint64_t bytes) {
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return false;
  const uint64_t end = (static_cast<uint64_t>(info.st_size) + page_bytes - 1) / page_bytes * page_bytes;
  return offset <= end && bytes <= end - offset;
}

Result<void*> SharedMemory::allocate(size_t bytes) {
  // A memfd may be larger than all memory, and using it would end in SIGBUS.
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes / page_bytes >= static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)))
    return system_error(format("%zu bytes are more than this machine's memory", bytes), ENOMEM);
  TUTTI_TRY_ASSIGN(Fd fd, sealed_memory("tutti-memory", bytes));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return system_error(format("mapping %zu bytes of shared memory", bytes), errno);
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint; only some systems have huge pages for shared memory
  const std::lock_guard lock(g_table.mutex);
  g_table.allocated[memory] = g_table.add(reinterpret_cast<uintptr_t>(memory), bytes, std::move(fd), 0)->id;
  return memory;
}

bool SharedMemory::free(void* memory) {
  const std::lock_guard lock(g_table.mutex);
  const auto found = g_table.allocated.find(memory);
  if (found == g_table.allocated.end()) return false;
  const auto block = g_table.take(found->second);
  g_table.allocated.erase(found);
  const size_t bytes = block->end - block->begin;
  // Something else may lie at these addresses soon.
  std::erase_if(g_table.blocks, [&](const auto& b) { return b->begin < block->end && b->end > block->begin; });
  munmap(memory, bytes);
  if (block->id <= g_table.last_of_parent) return true;
  [[maybe_unused]] const int punched =
      fallocate(block->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
  return true;
}

Result<std::shared_ptr<const SharedBlock>> SharedMemory::add(void* memory, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  TUTTI_TRY_ASSIGN(const Mapping mapping, find_mapping(begin));
  if (mapping.end == 0) return Error{Code::kInvalidArgument, format("%p is not mapped in this process", memory)};
  if (mapping.shared && bytes > mapping.end - begin)
    return Error{Code::kInvalidArgument, format("%zu bytes at %p span more than one mapping: the first ends after %zu",
                                                bytes, memory, static_cast<size_t>(mapping.end - begin))};
  Fd fd = mapping.shared ? open_file_behind(mapping) : Fd();  // may be none: the file has to be open
  const uint64_t offset = mapping.offset + (begin - mapping.begin);
  if (fd && !has_pages(fd, offset, bytes)) fd.reset();  // else peers would be told to map it, and refuse
  const std::lock_guard lock(g_table.mutex);
  return g_table.add(begin, bytes, std::move(fd), offset);
}

std::shared_ptr<const SharedBlock> SharedMemory::add_device(void* memory, size_t bytes, Fd dmabuf, uint64_t offset) {
  const std::lock_guard lock(g_table.mutex);
  return g_table.add(reinterpret_cast<uintptr_t>(memory), bytes, std::move(dmabuf), offset, true);
}

bool SharedMemory::remove(uint64_t id) {
  const std::lock_guard lock(g_table.mutex);
  return g_table.take(id) != nullptr;
}

std::shared_ptr<const SharedBlock> SharedMemory::find(const void* data, size_t bytes) {
  return g_table.find(
      [&](const SharedBlock& block) { return block.fd && !block.is_device && block.contains(data, bytes); });
}

std::shared_ptr<const SharedBlock> SharedMemory::find_registered(const void* data, size_t bytes) {
  return g_table.find([&](const SharedBlock& block) { return block.contains(data, bytes); });
}

Fd SharedMemory::dmabuf(uint64_t id, uint64_t* offset) {
  const auto block = g_table.find([&](const SharedBlock& b) { return b.id == id && b.is_device; });
  if (block == nullptr) return {};
  *offset = block->offset;
  return Fd(fcntl(block->fd.get(), F_DUPFD_CLOEXEC, 3));
}

bool SharedMemory::is_live(uint64_t id) {
  const std::lock_guard lock(g_table.mutex);
  return std::ranges::binary_search(g_table.blocks, id, {}, [](const auto& block) { return block->id; });
}

uint64_t SharedMemory::removals() {
  return g_table.removals.load(std::memory_order_relaxed);
}

}  // namespace tutti
