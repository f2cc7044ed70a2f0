// Speed of the CPU kernels on one thread: a table, or JSON with --json. Each figure is the best of several runs over one whole expert
// (gate_up and down, weight expansion included) in processor time, so that other work on the machine disturbs it least.
//   cpu_gemm [--json] [--hidden N] [--intermediate N]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernels.hpp"
#include "plan/problem.h"

namespace {

using namespace monomoe;

// Processor time of this thread: what other programs on the machine take away is not counted.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Best time of one call, measured for about a quarter of a second and at least three times.
template <class Body>
double best_seconds(Body&& body) {
  double best = 1e30;
  const double begin = seconds();
  for (int n = 0; n < 3 || (seconds() - begin < 0.25 && n < 1000); ++n) {
    const double start = seconds();
    body();
    best = std::min(best, seconds() - start);
  }
  return best;
}

struct Expert {
  Problem problem;
  ExpertLayout layout;
  std::vector<uint8_t> bytes;
};

Expert make_expert(int64_t hidden, int64_t intermediate, WeightFormat format) {
  Expert expert;
  expert.problem.hidden = hidden, expert.problem.intermediate = intermediate, expert.problem.weights = format;
  expert.problem.experts = expert.problem.topk = 1;
  expert.layout = expert_layout(expert.problem);
  expert.bytes.resize(expert.layout.bytes);
  std::mt19937 random(1);
  for (uint8_t& byte : expert.bytes) byte = static_cast<uint8_t>(random() % 0x78);
  if (format != WeightFormat::kFp8) {
    for (int64_t begin = expert.layout.gate_up_begin; begin < expert.layout.gate_scales_begin; begin += kFp4HalfBytes) {
      for (int64_t n = 0; n < kFp4ScaleBytes; ++n) {
        expert.bytes[begin + kFp4CodeBytes + n] = static_cast<uint8_t>((format == WeightFormat::kNvfp4 ? 0x38 : 123) + random() % 8);
      }
    }
  }
  for (int64_t n = expert.layout.gate_scales_begin; n + 4 <= expert.layout.bytes; n += 4) {
    const float one = 1.0f;
    std::memcpy(expert.bytes.data() + n, &one, 4);
  }
  const PackedExpertHeader header = {1.0f, 1.0f, 1.0f, 0, 0, 0, static_cast<int32_t>(format), 0};
  std::memcpy(expert.bytes.data(), &header, sizeof header);
  return expert;
}

struct Rows {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<const uint8_t*> code_rows;
  std::vector<const float*> scale_rows;
  cpu::TokenRows view() const { return {code_rows.data(), scale_rows.data(), static_cast<int64_t>(code_rows.size())}; }
};

Rows make_rows(int64_t count, int64_t k_blocks) {
  Rows rows{std::vector<uint8_t>(count * k_blocks * kBlockK), std::vector<float>(count * k_blocks, 0.01f), {}, {}};
  std::mt19937 random(2);
  for (uint8_t& code : rows.codes) code = static_cast<uint8_t>((random() & 0x80) | (0x40 + random() % 0x3E));
  for (int64_t n = 0; n < count; ++n) {
    rows.code_rows.push_back(rows.codes.data() + n * k_blocks * kBlockK);
    rows.scale_rows.push_back(rows.scales.data() + n * k_blocks);
  }
  return rows;
}

// Seconds of both matrices of one expert for count tokens.
double gemm_seconds(const cpu::Kernels& kernels, const Expert& expert, int64_t count) {
  const Rows hidden = make_rows(count, expert.layout.gate_up_k_blocks), mid = make_rows(count, expert.layout.down_k_blocks);
  std::vector<float> sums(count * kTileRows);
  void* scratch = std::aligned_alloc(64, round_up(kernels.scratch_bytes, 64));
  const double best = best_seconds([&] {
    for (bool down : {false, true}) {
      const int64_t halves = down ? expert.layout.down_halves : expert.layout.gate_up_halves;
      for (int64_t tile = 0; tile < ceil_div(halves, 2); ++tile) {
        kernels.tile_sums({expert.bytes.data(), &expert.layout, down, tile}, (down ? mid : hidden).view(), sums.data(), scratch);
      }
    }
  });
  std::free(scratch);
  return best;
}

struct RowTimes {
  double quantise, swiglu, combine;  // nanoseconds a channel
};

RowTimes row_times(const cpu::Kernels& kernels, int64_t hidden) {
  std::mt19937 random(3);
  std::vector<uint16_t> x(hidden), y(hidden);
  for (uint16_t& value : x) value = static_cast<uint16_t>(0x3F00 + random() % 0x180);
  std::vector<uint8_t> codes(hidden);
  std::vector<float> scales(hidden / kBlockK), sums(256 * kTileRows), weights(256, 1.0f);
  for (float& value : sums) value = static_cast<float>(random() % 1000) * 0.01f - 5.0f;
  std::vector<uint8_t*> code_rows(256, codes.data());
  std::vector<float*> scale_rows(256, scales.data());
  const std::vector<const uint16_t*> contributions(8, x.data());
  RowTimes times{};
  times.quantise = best_seconds([&] { kernels.quantise_row(x.data(), hidden, codes.data(), scales.data()); }) * 1e9 / static_cast<double>(hidden);
  times.swiglu = best_seconds([&] {
                   kernels.swiglu_quantise(sums.data(), 128, 10.0f, weights.data(), 256, code_rows.data(), scale_rows.data());
                 }) * 1e9 / (256.0 * 128.0);
  times.combine = best_seconds([&] { kernels.combine_row(contributions.data(), 8, hidden, y.data()); }) * 1e9 / static_cast<double>(hidden);
  return times;
}

const char* name_of(WeightFormat format) { return format == WeightFormat::kFp8 ? "fp8" : format == WeightFormat::kNvfp4 ? "nvfp4" : "mxfp4"; }

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  int64_t hidden = 4096, intermediate = 2048;
  for (int n = 1; n < argc; ++n) {
    const std::string argument = argv[n];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--hidden" && n + 1 < argc) {
      hidden = std::atoll(argv[++n]);
    } else if (argument == "--intermediate" && n + 1 < argc) {
      intermediate = std::atoll(argv[++n]);
    } else {
      std::fprintf(stderr, "usage: cpu_gemm [--json] [--hidden N] [--intermediate N]\n");
      return 2;
    }
  }
  Problem problem;
  problem.hidden = hidden, problem.intermediate = intermediate, problem.experts = problem.topk = 1;
  if (broken_rule(problem) != ProblemRule::kLegal) {
    std::fprintf(stderr, "hidden %lld, intermediate %lld: not a legal geometry\n", static_cast<long long>(hidden), static_cast<long long>(intermediate));
    return 2;
  }
  nlohmann::json report = {{"hidden", hidden}, {"intermediate", intermediate}, {"gemm", nlohmann::json::array()}, {"rows", nlohmann::json::array()}};
  if (!json) std::printf("%6s %6s %7s %10s %12s\n", "bits", "format", "tokens", "GFLOP/s", "ns/weight");
  for (int bits : {128, 256, 512}) {
    if (!cpu::has_vectors(bits)) continue;
    const cpu::Kernels& kernels = cpu::kernels(bits);
    for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
      const Expert expert = make_expert(hidden, intermediate, format);
      const double weights = 3.0 * static_cast<double>(hidden) * static_cast<double>(expert.problem.padded_intermediate());
      for (int64_t tokens : {1, 4, 16, 64, 256}) {
        const double time = gemm_seconds(kernels, expert, tokens);
        const double gflops = 2.0 * weights * static_cast<double>(tokens) / time * 1e-9;
        report["gemm"].push_back({{"bits", bits}, {"format", name_of(format)}, {"tokens", tokens}, {"gflops", gflops}, {"seconds", time}});
        if (!json) std::printf("%6d %6s %7lld %10.2f %12.3f\n", bits, name_of(format), static_cast<long long>(tokens), gflops, time * 1e9 / weights);
      }
    }
    const RowTimes times = row_times(kernels, hidden);
    report["rows"].push_back({{"bits", bits}, {"quantise_ns", times.quantise}, {"swiglu_ns", times.swiglu}, {"combine8_ns", times.combine}});
    if (!json) std::printf("%6d ns per channel: quantise %.2f, swiglu and quantise %.2f, combine of 8 %.2f\n", bits, times.quantise, times.swiglu, times.combine);
  }
  if (json) std::printf("%s\n", report.dump(1).c_str());
  return 0;
}
