// Packed weights and memory regions: every byte has one place, nothing overlaps, nothing overflows.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "plan/memory_layout.h"
#include "plan/swizzle.h"
#include "plan/weight_packing.h"

namespace monomoe {
namespace {

Problem problem_of(int64_t hidden, int64_t intermediate, int64_t experts, int64_t topk, int64_t ranks, int64_t capacity,
                   WeightFormat format = WeightFormat::kNvfp4) {
  Problem p;
  p.hidden = hidden;
  p.intermediate = intermediate;
  p.experts = experts;
  p.topk = topk;
  p.ranks = ranks;
  p.capacity = capacity;
  p.weights = format;
  return p;
}

// All offsets of `bytes` bytes each are hit exactly once.
template <class Mark>
void expect_bijection(int64_t size, int64_t bytes, Mark mark) {
  std::vector<int> hits(size, 0);
  mark([&](int64_t offset) {
    ASSERT_GE(offset, 0);
    ASSERT_LE(offset + bytes, size);
    for (int64_t i = 0; i < bytes; ++i) ++hits[offset + i];
  });
  for (int64_t i = 0; i < size; ++i) ASSERT_EQ(hits[i], 1) << i;
}

TEST(Swizzle, IsAPermutationAndSpreadsColumnsOverBanks) {
  expect_bijection(256 * 128, 1, [](auto hit) {
    for (int64_t row = 0; row < 256; ++row) {
      for (int64_t byte = 0; byte < 128; ++byte) hit(swizzle_128b(row, byte));
    }
  });
  for (int64_t byte = 0; byte < 128; byte += 16) {
    unsigned chunks = 0;
    for (int64_t row = 8; row < 16; ++row) chunks |= 1u << (swizzle_128b(row, byte) % 128 / 16);
    EXPECT_EQ(chunks, 0xFFu);
  }
  static_assert(swizzle_128b(0, 37) == 37 && swizzle_128b(1, 0) == 128 + 16 && swizzle_128b(9, 17) == 9 * 128 + 1);
}

TEST(WeightPacking, Fp4WordsAndScalesFillTheirBlocks) {
  expect_bijection(4096, 4, [](auto hit) {
    for (int64_t row = 0; row < 64; ++row) {
      for (int64_t t = 0; t < 4; ++t) {
        for (int64_t i = 0; i < 4; ++i) hit(fp4_word_offset(row, t, i));
      }
    }
  });
  expect_bijection(512, 1, [](auto hit) {
    for (int64_t row = 0; row < 64; ++row) {
      for (int64_t group = 0; group < 8; ++group) hit(fp4_scale_offset(row, group));
    }
  });
  expect_bijection(kFp4HalfBytes, 1, [](auto hit) {
    for (int64_t row = 0; row < kHalfRows; ++row) {
      for (int64_t word = 0; word < 16; ++word) {
        for (int64_t byte = 0; byte < 4; ++byte) hit(fp4_half_word_offset(row, word / 4, word % 4) + byte);
      }
      for (int64_t group = 0; group < 8; ++group) hit(fp4_half_scale_offset(row, group));
    }
  });
}

// A thread's registers, as the kernel reads them: two 16-byte loads and one scale word a lane.
TEST(WeightPacking, Fp4LanesHoldTheirRows) {
  for (int64_t warp = 0; warp < 4; ++warp) {
    for (int64_t g = 0; g < 8; ++g) {
      for (int64_t t = 0; t < 4; ++t) {
        const int64_t lane = 32 * warp + 4 * g + t, row = 16 * warp + g;
        for (int64_t p = 0; p < 2; ++p) {
          EXPECT_EQ(fp4_word_offset(row, t, 2 * p), p * 2048 + lane * 16);
          EXPECT_EQ(fp4_word_offset(row + 8, t, 2 * p), p * 2048 + lane * 16 + 4);
          EXPECT_EQ(fp4_word_offset(row, t, 2 * p + 1), p * 2048 + lane * 16 + 8);
          EXPECT_EQ(fp4_word_offset(row + 8, t, 2 * p + 1), p * 2048 + lane * 16 + 12);
        }
        EXPECT_EQ(fp4_scale_offset(row, 2 * t), lane * 4);
        EXPECT_EQ(fp4_scale_offset(row + 8, 2 * t), lane * 4 + 1);
        EXPECT_EQ(fp4_scale_offset(row, 2 * t + 1), lane * 4 + 2);
        EXPECT_EQ(fp4_scale_offset(row + 8, 2 * t + 1), lane * 4 + 3);
      }
    }
  }
}

TEST(WeightPacking, Fp4WordKeepsEveryCode) {
  for (int j = 0; j < 8; ++j) {
    for (uint32_t code = 0; code < 16; ++code) {
      const uint32_t word = pack_fp4_word(code << (4 * j));
      EXPECT_EQ(word, (code & 7) << fp4_magnitude_bit(j) | (code >> 3) << fp4_sign_bit(j));
      EXPECT_EQ(unpack_fp4_word(word), code << (4 * j));
    }
  }
  static_assert(unpack_fp4_word(pack_fp4_word(0xFEDCBA98u)) == 0xFEDCBA98u && pack_fp4_word(0x88888888u) == 0x88888888u);
  static_assert(pack_fp4_word(0xFFFFFFFFu) == 0xFFFFFFFFu && pack_fp4_word(0x00000008u) == 0x80u && pack_fp4_word(0x00080000u) == 0x8u);
}

TEST(WeightPacking, HalvesCoverTheMatrixOnceAndTilesAreContiguous) {
  for (int64_t halves : {1, 2, 3, 5, 8}) {
    for (int64_t k_blocks : {1, 3, 4}) {
      expect_bijection(halves * k_blocks * 16, 16, [&](auto hit) {
        for (int64_t half = 0; half < halves; ++half) {
          for (int64_t k = 0; k < k_blocks; ++k) hit(half_offset(half, k, halves, k_blocks, 16));
        }
      });
      for (int64_t half = 0; half + 1 < halves; half += 2) {
        EXPECT_EQ(half_offset(half, 1, halves, k_blocks, 16) + 16, half_offset(half + 1, 1, halves, k_blocks, 16));
      }
    }
  }
}

TEST(WeightPacking, GateAndUpRowsMeetEveryChannelOnce) {
  const int64_t halves = 6;
  expect_bijection(2 * halves * 64, 1, [&](auto hit) {
    for (int64_t half = 0; half < halves; ++half) {
      for (int64_t row = 0; row < kHalfRows; ++row) {
        const GateUpRow where = gate_up_row(half, row);
        hit((where.is_up ? halves * 64 : 0) + where.channel);
        // One thread holds rows r and r + 8: the gate and the up of one channel.
        if (!where.is_up) {
          EXPECT_TRUE(gate_up_row(half, row + 8).is_up);
          EXPECT_EQ(gate_up_row(half, row + 8).channel, where.channel);
        }
      }
    }
  });
}

TEST(WeightPacking, ExpertPartsFollowEachOther) {
  for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    for (const auto& [hidden, intermediate] : {std::pair{128, 32}, {384, 96}, {640, 1408}, {4096, 2048}, {7168, 3072}}) {
      const ExpertLayout l = expert_layout(problem_of(hidden, intermediate, 1, 1, 1, 1, format));
      const int64_t channels = round_up(intermediate, 128);
      const int64_t matrix = format == WeightFormat::kFp8 ? hidden * channels : hidden * channels * 9 / 16;
      EXPECT_EQ(l.gate_up_begin, kPackedHeaderBytes);
      EXPECT_EQ(l.down_begin - l.gate_up_begin, 2 * matrix);
      EXPECT_EQ(l.gate_scales_begin - l.down_begin, matrix);
      const int64_t scales = format == WeightFormat::kFp8 ? hidden / 128 * channels / 128 * 4 : 0;
      EXPECT_EQ(l.up_scales_begin - l.gate_scales_begin, scales);
      EXPECT_EQ(l.down_scales_begin - l.up_scales_begin, scales);
      EXPECT_EQ(l.bytes, round_up(l.down_scales_begin + scales, kRegionAlign));
      EXPECT_EQ(l.gate_up_half(l.gate_up_halves - 1, l.gate_up_k_blocks - 1) + l.half_bytes, l.down_begin);
      EXPECT_EQ(l.down_half(l.down_halves - 1, l.down_k_blocks - 1) + l.half_bytes, l.gate_scales_begin);
      EXPECT_EQ(l.down_half(0, 0) % kRegionAlign, 0);
    }
  }
}

// Begins and ends of the regions in order, from the sizes the comments of memory_layout.h state.
void expect_regions(const std::vector<std::pair<int64_t, int64_t>>& regions, int64_t total) {
  int64_t end = 0;
  for (const auto& [begin, bytes] : regions) {
    EXPECT_EQ(begin, end);
    EXPECT_EQ(begin % kRegionAlign, 0);
    end = round_up(begin + bytes, kRegionAlign);
  }
  EXPECT_EQ(total, end);
}

TEST(MemoryLayout, RegionsFollowEachOtherAlignedWithoutOverlap) {
  for (const Problem& p : {problem_of(128, 32, 1, 1, 1, 0), problem_of(384, 96, 7, 3, 3, 5), problem_of(4096, 2048, 256, 6, 8, 8192),
                           problem_of(7168, 3072, 384, 32, 64, kMaxCapacity)}) {
    const SymmetricLayout s = symmetric_layout(p);
    const int64_t c = p.capacity, peers = (p.ranks - 1) * c, routes = p.ranks * c * p.topk;
    expect_regions({{s.flags, static_cast<int64_t>(sizeof(SymmetricFlags))},
                    {s.arrivals, 4 * c},
                    {s.route_ids, 4 * routes},
                    {s.route_weights, 4 * routes},
                    {s.row_scales, peers * (p.hidden / 128) * 4},
                    {s.row_codes, peers * p.hidden},
                    {s.contributions, c * p.topk * p.hidden * 2}},
                   s.bytes);
    const int64_t slots = 33, block = 64;
    const WorkspaceLayout w = workspace_layout(p, slots, block);
    const int64_t mid_blocks = ceil_div(p.intermediate, 128);
    expect_regions({{w.flags, static_cast<int64_t>(sizeof(LocalFlags))},
                    {w.own_scales, c * (p.hidden / 128) * 4},
                    {w.own_codes, c * p.hidden},
                    {w.expert_begin, 8 * (slots + 1)},
                    {w.block_begin, 8 * (slots + 1)},
                    {w.block_done, 4 * (routes / block + slots)},
                    {w.routes, 16 * routes},
                    {w.mid_scales, 4 * routes * round_up(mid_blocks, 4)},
                    {w.mid_codes, routes * mid_blocks * 128}},
                   w.bytes);
    // The GPU's: lists that begin at multiples of eight rows, and arranged rows of as many blocks as the window has, or as there can be.
    const WorkspaceLayout g = workspace_layout(p, slots, block, 24, 256);
    const int64_t rows = routes + 8 * slots, blocks = routes / block + slots, window = min_of(24, blocks);
    EXPECT_EQ(g.window, window);
    expect_regions({{g.flags, static_cast<int64_t>(sizeof(LocalFlags))},
                    {g.own_scales, c * (p.hidden / 128) * 4},
                    {g.own_codes, c * p.hidden},
                    {g.expert_begin, 8 * (slots + 1)},
                    {g.block_begin, 8 * (slots + 1)},
                    {g.block_done, 4 * blocks},
                    {g.routes, 16 * rows},
                    {g.mid_scales, 4 * rows * round_up(mid_blocks, 4)},
                    {g.mid_codes, rows * mid_blocks * 128},
                    {g.route_counts, 4 * 256 * slots},
                    {g.blocks, 16 * blocks},
                    {g.block_arranged, 4 * blocks},
                    {g.arranged_scales, window * block * (p.hidden / 128) * 4},
                    {g.arranged_codes, window * block * p.hidden}},
                   g.bytes);
  }
}

// Any split of the routes over the experts needs at most this many token blocks.
TEST(MemoryLayout, TokenBlocksHoldAnySplit) {
  const Problem p = problem_of(128, 32, 5, 3, 2, 7);
  const int64_t block = 8;
  for (int64_t alone = 0; alone <= 4; ++alone) {
    int64_t blocks = 0, left = p.max_routes();
    for (int64_t e = 0; e < 5; ++e) {
      const int64_t count = e < alone ? min_of(left, 1) : e == 4 ? left : 0;
      blocks += ceil_div(count, block);
      left -= count;
    }
    EXPECT_LE(blocks, max_token_blocks(p, 5, block));
  }
}

TEST(MemoryLayout, SymmetricMemoryStaysSmall) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_LE(symmetric_layout(problem_of(4096, 2048, 256, 6, 8, 8192)).bytes, 700 * kMiB);
  EXPECT_LE(symmetric_layout(problem_of(7168, 3072, 384, 6, 8, 8192)).bytes, 1100 * kMiB);
}

TEST(MemoryLayout, OffsetsPassTwoToThe31) {
  // 98304 tokens, 6 slots of 4096 channels: more than 2^31 elements in one region.
  const Problem p = problem_of(4096, 2048, 256, 6, 1, 98304);
  const SymmetricLayout s = symmetric_layout(p);
  EXPECT_EQ(s.bytes - s.contributions, int64_t{98304} * 6 * 4096 * 2);
  EXPECT_GT((s.bytes - s.contributions) / 2, int64_t{1} << 31);
  const WorkspaceLayout w = workspace_layout(p, 256, 128);
  EXPECT_EQ(w.bytes - w.mid_codes, int64_t{98304} * 6 * 2048);
  EXPECT_EQ(w.mid_codes - w.mid_scales, int64_t{98304} * 6 * 16 * 4);

  // The largest legal run: 64 ranks of 2^20 tokens, 32 slots, the widest channels. All sizes are exact products.
  constexpr int64_t kTokens = int64_t{1} << 20;
  const Problem most = problem_of(kMaxHidden, kMaxIntermediate, kMaxExperts, kMaxTopk, kMaxRanks, kTokens);
  ASSERT_EQ(broken_rule(most), ProblemRule::kLegal);
  const SymmetricLayout big = symmetric_layout(most);
  EXPECT_EQ(big.contributions - big.row_codes, 63 * kTokens * 65536);
  EXPECT_EQ(big.bytes - big.contributions, kTokens * 32 * 65536 * 2);
  const WorkspaceLayout work = workspace_layout(most, 1024, 8);
  EXPECT_EQ(work.bytes - work.mid_codes, 64 * kTokens * 32 * 65536);
  EXPECT_GT(work.bytes, 0);
  EXPECT_GT(expert_layout(problem_of(kMaxHidden, kMaxIntermediate, 1, 1, 1, 1, WeightFormat::kFp8)).bytes, int64_t{3} << 32);
}

TEST(MemoryLayout, PeerBlocksSkipTheRankItself) {
  for (int64_t self = 0; self < 5; ++self) {
    int64_t expected = 0;
    for (int64_t src = 0; src < 5; ++src) {
      if (src == self) continue;
      EXPECT_EQ(peer_block(src, self), expected++);
    }
  }
}

}  // namespace
}  // namespace monomoe
