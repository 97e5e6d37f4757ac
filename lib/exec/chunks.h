// How large messages are, and how the elements of a block are divided among its chunks. Stateless: any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tutti {

// Sizes of messages, and of the links that carry them.
struct MessageSizes {
  uint32_t slot_bytes = 0;  // of a message at most; a multiple of 64
  // What the network carries in one go, a multiple of 64: the excess of a message over a multiple of it costs as much
  // as a whole segment. 0: any size is as good as another.
  uint32_t segment_bytes = 0;
  uint32_t slots = 4;        // of a link: how many messages may be under way
  uint32_t connections = 0;  // of a link to another host; 0: the transport decides
  uint32_t pieces = 1;       // of a chunk at least, if none is shorter than kLeastPieceBytes
};

// What the sizes depend on.
struct Surroundings {
  size_t hosts = 1;
  bool all_share_memory = false;
  bool any_pins = false;          // a network device pins messages
  bool any_divides = false;       // a link divides messages among several connections
  uint64_t under_way_bytes = 0;   // that a rank needs in flight, because hosts are far apart; 0: they are not
  bool all_send_by_rate = false;  // TCP does so on all ranks, regardless of losses
};

// What the kernel sends over TCP in one go, less a frame's header: one packet of 65483 bytes on loopback, 45 packets of
// Ethernet's 1448 between hosts. A message of 64 KiB and its header, 101 bytes more, takes everything twice:
// all-reduces of 256 KiB by 4 ranks take 230 us instead of 176.
inline constexpr uint32_t kTcpMessageBytes = 65088;

// Used unless settings say otherwise; all ranks arrive at the same. Measured with all-reduce of two ranks: over TCP on
// loopback, where a message is one system call, 512 KiB are 1.15 times faster than 256 at 1 MiB and 1.3 at 4 MiB, and
// the same with four ranks; in shared memory more than 128 KiB make no difference, but take more cache. A network
// device pins them. Over TCP there is room beyond 512 KiB for what the last chunk takes over from the others. Between
// hosts the steps of a schedule overlap only if messages are short beside the whole, and a message of one segment costs
// as little as any: 4 MiB by 8 hosts at 1 Gb/s take 1.01 times the bound instead of 1.41; 16 slots instead of 4 gain
// another 2 to 7 % at 1 MiB. Several connections divide messages, short ones badly: with two segments for each, 4 MiB
// over two networks of 1 Gb/s take 1.04 times the bound instead of 1.15 to 1.24. A lane's next message waits until the
// last one has arrived, so between hosts that are far apart a message holds all that is in flight: 16 MiB by 2 ranks,
// 80 ms apart at 200 Mb/s, took 4 s and more in single segments, 0.86 in 64. There kernels that halve their rate at a
// loss need several connections, and then messages of 16 MiB would have pieces that are too large: 64 MiB reach 87
// instead of 93 % of the line rate. Other kernels do better with one connection, where no piece waits for another.
inline MessageSizes usual_sizes(const Surroundings& s) {
  constexpr uint64_t kBytesOfConnection = 256 << 10, kMostConnections = 16, kMostDividedBytes = 8 << 20;
  if (s.hosts == 1 && s.all_share_memory) return {128 << 10};
  if (s.any_pins) return {256 << 10};
  if (s.hosts == 1) return {576 << 10, kTcpMessageBytes};
  const uint64_t connections =
      s.all_send_by_rate ? 0 : std::min(s.under_way_bytes / kBytesOfConnection, kMostConnections);
  const uint64_t under_way_bytes = connections > 1 ? std::min(s.under_way_bytes, kMostDividedBytes) : s.under_way_bytes;
  const auto segments =
      std::max<uint32_t>(s.any_divides ? 2 : 1, static_cast<uint32_t>(under_way_bytes / kTcpMessageBytes));
  return {segments * kTcpMessageBytes, kTcpMessageBytes, std::clamp(32 / segments, 2u, 16u),
          static_cast<uint32_t>(connections)};
}

// Where data go one way in shared memory, the receiver works on a piece while the sender copies the next, and pieces of
// up to half a slot leave room for twice as many. Buffers rewritten, 2 ranks: broadcasts of 100,000 B in 5.5 us instead
// of 6.9, of 128 KiB in 7.0 instead of 8.7, a reduce of 128 KiB in 8.8 instead of 10.3; 4 ranks: 41 instead of 48, 51
// instead of 61, 18 instead of 21. Two pieces of 16 KiB cost 16 %, two of 32 KiB gain nothing.
inline constexpr uint32_t kOneWayPieces = 3, kLeastPieceBytes = 40 << 10;

// Smaller values are copied into the slot, and no sender waits: 16 KiB in .8 to .9 of the time, 32 in .95 to 1.15.
inline constexpr uint64_t kExposeFromBytes = 24 << 10;

// Where the elements of a block are depends on its length, the number of chunks and the network's segments, and so does
// the order in which a schedule adds them up; slots do not matter. A chunk that does not fit its slot goes in pieces,
// one per round. The last chunk takes the rest, as does the last piece of a chunk. Chunks beyond the end are empty, and
// so are their messages.
class ChunkLayout {
 public:
  // Some of a block's elements.
  struct Part {
    uint64_t begin, elems;
  };

  ChunkLayout(size_t elem_bytes, uint32_t n_chunks, MessageSizes sizes)
      : n_chunks_(n_chunks),
        slot_elems_(sizes.slot_bytes / elem_bytes),
        pieces_(sizes.pieces),
        least_piece_elems_(kLeastPieceBytes / elem_bytes),
        segment_elems_(sizes.segment_bytes / elem_bytes),
        line_elems_(64 / elem_bytes) {}  // chunks start on cache lines of the block

  uint64_t rounds(uint64_t block_elems) const {
    const uint64_t each = share(block_elems, n_chunks_, UINT64_MAX);
    const uint64_t last = block_elems - std::min(block_elems, (n_chunks_ - 1) * each);
    const uint64_t longest = std::max(each, last);
    const uint64_t by_slots = (longest + slot_elems_ - 1) / slot_elems_;
    return std::max({uint64_t{1}, by_slots, std::min(pieces_, longest / least_piece_elems_)});
  }

  Part part(uint64_t block_elems, uint64_t rounds, uint64_t round, uint64_t chunk) const {
    const Part whole = nth({0, block_elems}, share(block_elems, n_chunks_, UINT64_MAX), chunk, n_chunks_);
    return rounds == 1 ? whole : nth(whole, share(whole.elems, rounds, slot_elems_), round, rounds);
  }

 private:
  static Part nth(Part whole, uint64_t each, uint64_t n, uint64_t parts) {
    const uint64_t skipped = std::min(whole.elems, n * each), left = whole.elems - skipped;
    return {whole.begin + skipped, n + 1 == parts ? left : std::min(each, left)};
  }

  // Elements per part. Parts that go a little beyond whole segments are cut, and the last one takes the remainder: 256
  // KiB over four chunks, all-reduced over TCP by 4 ranks, take 176 us instead of 230.
  uint64_t share(uint64_t elems, uint64_t parts, uint64_t most) const {
    if (elems == 0) return 0;
    const uint64_t even = (elems - 1) / parts + 1;
    const uint64_t each = std::min(most, (even + line_elems_ - 1) / line_elems_ * line_elems_);
    if (segment_elems_ == 0 || each < segment_elems_) return each;
    const uint64_t cut = each % segment_elems_, left = cut * (parts - 1);
    return left <= each / kMostLeft && left <= most - each ? each - cut : each;
  }

  static constexpr uint64_t kMostLeft = 16;  // the last part grows by at most 1/16: the others wait for it
  uint64_t n_chunks_, slot_elems_, pieces_, least_piece_elems_, segment_elems_, line_elems_;
};

}  // namespace tutti
