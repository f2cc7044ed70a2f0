// Experts are converted on several threads and appended in order; each gives its source's pages back when it is done.
#include "layer/pack_shard.hpp"

#include <algorithm>
#include <numeric>

#include "layer/parallel.hpp"
#include "plan/problem.h"
#include "weights/checksum.hpp"
#include "weights/mapped_file.hpp"
#include "weights/pack_expert.hpp"

namespace monomoe::layer {
namespace {

std::span<const uint8_t> code_bytes(const SourceMatrix& m) {
  const int64_t weights = m.rows * m.cols;
  return {m.codes, static_cast<size_t>(m.format == WeightFormat::kFp8 ? weights : weights / 2)};
}

std::span<const uint8_t> scale_bytes(const SourceMatrix& m) {
  if (m.format == WeightFormat::kNvfp4) return {m.scales, static_cast<size_t>(m.rows * m.cols / 16)};
  if (m.format == WeightFormat::kMxfp4) return {m.scales, static_cast<size_t>(m.rows * m.cols / 32)};
  const int64_t width = m.scale_type == ScaleType::kF32 ? 4 : m.scale_type == ScaleType::kBf16 ? 2 : 1;
  return {m.scales, static_cast<size_t>(ceil_div(m.rows, kBlockK) * ceil_div(m.cols, kBlockK) * width)};
}

void release(const LocatedTensor& tensor) {
  if (tensor.entry != nullptr) release_mapped(tensor.entry->data, static_cast<size_t>(tensor.entry->bytes));
}

void release(const ExpertSource& source) {
  for (const MatrixSource* matrix : {&source.gate, &source.up, &source.down}) {
    release(matrix->weight);
    release(matrix->scale);
  }
}

// One expert of the output, before it is written.
struct Piece {
  std::vector<uint8_t> packed;
  ConvertedExpert converted;
};

Result<void> make_piece(const LayerWeights& layer, int64_t expert, const PackRequest& request, Piece& piece) {
  const SourceExpert& source = layer.experts[static_cast<size_t>(expert)];
  if (request.format) {
    piece.converted = convert_expert(source, *request.format);
    return {};
  }
  const Problem problem = packed_problem(layer, false);
  piece.packed.resize(static_cast<size_t>(expert_layout(problem).bytes));
  return pack_expert(source, problem, piece.packed.data());
}

void note_change(const ConvertedExpert& expert, const ExpertSource& source, ConversionChange& change, std::string& first_tensor) {
  const std::pair<const ConvertedMatrix*, const MatrixSource*> matrices[] = {
      {&expert.gate, &source.gate}, {&expert.up, &source.up}, {&expert.down, &source.down}};
  for (const auto& [matrix, from] : matrices) {
    if (change.first_row < 0 && matrix->change.first_row >= 0) first_tensor = from->weight.entry->name;
    change.add(matrix->change);
  }
}

// Calls use(i, piece) for the experts in order; at most `threads` of them are in memory.
Result<void> for_each_piece(const LayerWeights& layer, std::span<const int64_t> experts, const PackRequest& request,
                            const std::function<Result<void>(size_t, Piece&)>& use) {
  const size_t batch = static_cast<size_t>(request.threads);
  for (size_t begin = 0; begin < experts.size(); begin += batch) {
    const size_t count = std::min(batch, experts.size() - begin);
    std::vector<Piece> pieces(count);
    const auto make = [&](int64_t i) {
      return make_piece(layer, experts[begin + static_cast<size_t>(i)], request, pieces[static_cast<size_t>(i)]);
    };
    if (auto made = parallel_for(static_cast<int64_t>(count), request.threads, make); !made) return made;
    for (size_t i = 0; i < count; ++i) {
      if (auto used = use(begin + i, pieces[i]); !used) return used;
      release(layer.expert_sources[static_cast<size_t>(experts[begin + i])]);
      pieces[i] = {};
    }
  }
  return {};
}

class ShardWriter {
 public:
  ShardWriter(SafetensorsWriter& writer, const BytesWritten& progress) : writer_(writer), progress_(progress) {}

  Result<void> append(std::span<const uint8_t> bytes) {
    constexpr size_t kPiece = size_t{1} << 26;
    for (size_t begin = 0; begin < bytes.size(); begin += kPiece) {
      const auto piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
      if (auto done = writer_.append(piece); !done) return done;
      progress_(piece.size());
    }
    return {};
  }
  // The checksum of what was written.
  Result<std::string> append_copy(const CopiedTensor& copy) {
    const TensorEntry& entry = *copy.source.entry;
    const std::span<const uint8_t> all(entry.data, static_cast<size_t>(entry.bytes));
    Checksum checksum;
    if (copy.rows.empty()) {
      checksum.update(all);
      if (auto done = append(all); !done) return done.error();
      release(copy.source);
      return checksum.text();
    }
    const size_t row_bytes = all.size() / static_cast<size_t>(entry.shape[0]);
    for (const int64_t row : copy.rows) {
      const auto bytes = all.subspan(static_cast<size_t>(row) * row_bytes, row_bytes);
      checksum.update(bytes);
      if (auto done = append(bytes); !done) return done.error();
    }
    return checksum.text();
  }
  Result<void> append_expert(const ConvertedExpert& expert) {
    for (const ConvertedMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
      const SourceMatrix& m = matrix->matrix;
      if (auto done = append(code_bytes(m)); !done) return done;
      if (auto done = append(scale_bytes(m)); !done) return done;
      if (m.format != WeightFormat::kNvfp4) continue;
      if (auto done = append({reinterpret_cast<const uint8_t*>(&m.global_scale), sizeof(float)}); !done) return done;
    }
    return {};
  }

 private:
  SafetensorsWriter& writer_;
  const BytesWritten& progress_;
};

Result<void> append_shared(const LayerWeights& layer, ShardWriter& out, ShardRecord& record) {
  const Problem problem = packed_problem(layer, true);
  std::vector<uint8_t> packed(static_cast<size_t>(expert_layout(problem).bytes));
  if (auto done = pack_expert(*layer.shared, problem, packed.data()); !done) return done;
  record.shared_checksum = checksum_text(packed);
  release(layer.shared_source);
  return out.append(packed);
}

std::vector<int64_t> kept_experts(const LayerWeights& layer, const PackRequest& request) {
  if (!request.experts.empty()) return request.experts;
  std::vector<int64_t> all(layer.experts.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

Result<ShardRecord> write_shard(const ShardPlan& shard, const LayerWeights* layer, const PackRequest& request, const std::string& path,
                                const BytesWritten& progress) {
  auto writer = SafetensorsWriter::create(path, shard.specs, {{"format", "pt"}});
  if (!writer) return writer.error();
  ShardWriter out(writer.value(), progress);
  ShardRecord record;
  record.name = shard.name;
  for (const CopiedTensor& copy : shard.copies) {
    auto checksum = out.append_copy(copy);
    if (!checksum) return checksum.error();
    if (!request.format) record.tensor_checksums.emplace(copy.name, checksum.take());
  }
  if (shard.packs_shared) {
    if (auto done = append_shared(*layer, out, record); !done) return done.error();
  }
  const auto use = [&](size_t i, Piece& piece) -> Result<void> {
    if (!request.format) {
      record.expert_checksums.push_back(checksum_text(piece.packed));
      return out.append(piece.packed);
    }
    note_change(piece.converted, layer->expert_sources[static_cast<size_t>(shard.experts[i])], record.change, record.first_tensor);
    return out.append_expert(piece.converted);
  };
  if (layer != nullptr) {
    if (auto done = for_each_piece(*layer, shard.experts, request, use); !done) return done.error();
  }
  if (auto done = writer.value().finish(); !done) return done.error();
  record.bytes = writer.value().file_bytes();
  record.checksum = writer.value().checksum();
  return record;
}

Result<LayerChange> layer_change(const LayerWeights& layer, const PackRequest& request) {
  LayerChange out;
  const std::vector<int64_t> experts = kept_experts(layer, request);
  const auto use = [&](size_t i, Piece& piece) -> Result<void> {
    note_change(piece.converted, layer.expert_sources[static_cast<size_t>(experts[i])], out.change, out.first_tensor);
    return {};
  };
  if (auto done = for_each_piece(layer, experts, request, use); !done) return done.error();
  return out;
}

bool converts(const LayerWeights& layer, const PackRequest& request) {
  if (!request.format) return false;
  const SourceMatrix& first = layer.experts.front().gate;
  return first.format != *request.format || (first.format == WeightFormat::kFp8 && first.scale_block != kBlockK);
}

}  // namespace monomoe::layer
