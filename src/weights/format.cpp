// One decision per matrix: the weight's type narrows it down, its scales settle it, config.json may only confirm or forbid.
#include "weights/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "weights/config_quant.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

constexpr int64_t kBlock = 128, kSmallBlock = 32, kNvfp4Group = 16, kMxfp4Group = 32;

std::string file_word(const LocatedTensor& tensor) {
  const std::string& path = tensor.file->path();
  return printable(path.substr(path.rfind('/') + 1));
}

// `tensor "x.w1.scale" (file.safetensors): found F32 [4, 8]`
std::string found(const LocatedTensor& tensor) {
  return fmt::format("tensor \"{}\" ({}): found {} {}", printable(tensor.entry->name), file_word(tensor), dtype_name(tensor.entry->dtype),
                     shape_text(tensor.entry->shape));
}

struct Decision {
  const MatrixTensors& tensors;
  std::string_view base_name;
  const FormatHints& hints;
  LocatedTensor weight, scale, global;
  TensorPart scale_part = TensorPart::kScale;
  SourceMatrix matrix{};

  Error missing(std::string_view parts) const {
    return bad_input(fmt::format("missing: {} (beside tensor \"{}\" ({}), {} {}); fetch the shard that holds it", parts,
                                 printable(weight.entry->name), file_word(weight),
                                 dtype_name(weight.entry->dtype), shape_text(weight.entry->shape)));
  }
  std::string name_of(std::string_view part) const { return fmt::format("\"{}.{}\"", printable(base_name), part); }
};

// compressed-tensors writes the codes as weight_packed and the reciprocal of ModelOpt's global scale; half of either is no matrix.
std::optional<Error> check_dialect(const Decision& d) {
  const LocatedTensor &weight = d.tensors[TensorPart::kWeight], &packed = d.tensors[TensorPart::kWeightPacked];
  const LocatedTensor& reciprocal = d.tensors[TensorPart::kWeightGlobalScale];
  if (weight.entry != nullptr && packed.entry != nullptr) {
    return bad_input(fmt::format("{} beside {}; a matrix has one of them: remove the one that does not belong to it", found(packed), found(weight)));
  }
  if (reciprocal.entry != nullptr && packed.entry == nullptr) {
    return bad_input(fmt::format("{} beside a .weight; weight_global_scale is the reciprocal of weight_scale_2 and belongs to a weight_packed: "
                                 "export the matrix again",
                                 found(reciprocal)));
  }
  if (packed.entry != nullptr && d.tensors[TensorPart::kWeightScale2].entry != nullptr) {
    return bad_input(fmt::format("{} beside {}; a weight_packed takes a weight_global_scale: export the matrix again",
                                 found(d.tensors[TensorPart::kWeightScale2]), found(packed)));
  }
  if (packed.entry != nullptr && packed.entry->dtype != DType::U8) {
    return bad_input(fmt::format("{}, wanted U8 (two FP4 codes a byte); other packings of compressed-tensors are not supported: convert the checkpoint",
                                 found(packed)));
  }
  return std::nullopt;
}

// At most one of .scale, .weight_scale and .weight_scale_inv.
std::optional<Error> pick_scale(Decision& d) {
  for (const TensorPart part : {TensorPart::kScale, TensorPart::kWeightScale, TensorPart::kWeightScaleInv}) {
    const LocatedTensor& candidate = d.tensors[part];
    if (candidate.entry == nullptr) continue;
    if (d.scale.entry != nullptr) {
      return bad_input(fmt::format("{} beside {}; a matrix has one scale tensor: remove the one that does not belong to it",
                                   found(candidate), found(d.scale)));
    }
    d.scale = candidate;
    d.scale_part = part;
  }
  return std::nullopt;
}

Error wrong_scale_shape(const Decision& d, int64_t rows, int64_t cols, std::string_view rule) {
  return bad_input(fmt::format("{}, wanted {} ({}) for the weight {} {}; other block sizes are not supported: export the scales again", found(d.scale),
                               shape_text(std::vector<int64_t>{rows, cols}), rule, dtype_name(d.weight.entry->dtype),
                               shape_text(d.weight.entry->shape)));
}

// Columns that do not fill whole groups have no legal scale shape.
Error wrong_columns(const Decision& d, int64_t group) {
  return bad_input(fmt::format("{} = {} x {}, wanted a multiple of {} columns (one scale for each {}): export the matrix with a width that fits",
                               found(d.weight), d.matrix.rows, d.matrix.cols, group, group));
}

bool has_shape(const LocatedTensor& tensor, int64_t rows, int64_t cols) {
  return tensor.entry->shape.size() == 2 && tensor.entry->shape[0] == rows && tensor.entry->shape[1] == cols;
}

Result<SourceMatrix> decide_fp8(Decision& d) {
  if (d.global.entry != nullptr) {
    return bad_input(fmt::format("{} beside the weight {}; weight_scale_2 belongs to NVFP4 (U8 codes): export the tensor again",
                                 found(d.global), found(d.weight)));
  }
  if (d.scale.entry == nullptr) {
    return d.missing(fmt::format("{}, {} or {}", d.name_of("scale"), d.name_of("weight_scale_inv"), d.name_of("weight_scale")));
  }
  const auto& block = d.hints.config->quant.weight_block_size;
  if (!d.hints.ignored && block && ((*block)[0] != (*block)[1] || ((*block)[0] != kBlock && (*block)[0] != kSmallBlock))) {
    return bad_input(fmt::format("{}; {} states weight_block_size [{}, {}], wanted [128, 128] or [32, 32]: other blocks are not supported",
                                 found(d.weight), printable(d.hints.config->file), (*block)[0], (*block)[1]));
  }
  switch (d.scale.entry->dtype) {
    case DType::F32:
      d.matrix.scale_type = ScaleType::kF32;
      break;
    case DType::BF16:
      d.matrix.scale_type = ScaleType::kBf16;
      break;
    case DType::F8_E8M0:
      d.matrix.scale_type = ScaleType::kE8m0;
      break;
    case DType::U8:
      if (d.hints.e8m0_block_scale) {
        d.matrix.scale_type = ScaleType::kE8m0;
        break;
      }
      return bad_input(
          fmt::format("{}; U8 scales are taken as e8m0 only where config.json states scale_fmt ue8m0: state it, or export the "
                      "scale as F8_E8M0",
                      found(d.scale)));
    default:
      return bad_input(fmt::format("{}, wanted F32, BF16 or F8_E8M0 scales for an F8_E4M3 weight: export the scale again", found(d.scale)));
  }
  // The grid decides between the two block sizes; where both give one grid, every block is the whole matrix.
  const auto blocks = [](int64_t extent, int64_t size) { return (extent + size - 1) / size; };
  const int64_t rows = blocks(d.matrix.rows, kBlock), cols = blocks(d.matrix.cols, kBlock);
  if (!has_shape(d.scale, rows, cols)) {
    if (!has_shape(d.scale, blocks(d.matrix.rows, kSmallBlock), blocks(d.matrix.cols, kSmallBlock)))
      return wrong_scale_shape(d, rows, cols, "one scale for each block of 128 x 128");
    d.matrix.scale_block = kSmallBlock;
  }
  d.matrix.format = WeightFormat::kFp8;
  return d.matrix;
}

Result<SourceMatrix> decide_nvfp4(Decision& d) {
  std::string parts;
  if (d.scale.entry == nullptr) parts = d.name_of("weight_scale");
  const bool dialect = d.tensors[TensorPart::kWeightPacked].entry != nullptr;
  if (d.global.entry == nullptr) parts += (parts.empty() ? "" : " and ") + d.name_of(dialect ? "weight_global_scale" : "weight_scale_2");
  if (!parts.empty()) return d.missing(parts);
  if (d.scale.entry->dtype != DType::F8_E4M3) {
    return bad_input(
        fmt::format("{} beside {}; wanted F8_E4M3 scales with a weight_scale_2 (NVFP4), or no weight_scale_2 (MXFP4): export the "
                    "matrix again",
                    found(d.scale), found(d.global)));
  }
  if (d.matrix.cols % kNvfp4Group != 0) return wrong_columns(d, kNvfp4Group);
  if (!has_shape(d.scale, d.matrix.rows, d.matrix.cols / kNvfp4Group)) {
    return wrong_scale_shape(d, d.matrix.rows, d.matrix.cols / kNvfp4Group, "one scale for each 16 columns");
  }
  const TensorEntry& global = *d.global.entry;
  const bool scalar = global.shape.empty() || (global.shape.size() == 1 && global.shape[0] == 1);
  if (global.dtype != DType::F32 || !scalar) {
    return bad_input(fmt::format("{}, wanted one F32 value ([] or [1]): export the tensor again", found(d.global)));
  }
  if (d.hints.read_values) {
    std::memcpy(&d.matrix.global_scale, global.data, sizeof(float));
    if (d.global.entry == d.tensors[TensorPart::kWeightGlobalScale].entry) d.matrix.global_scale = 1.0f / d.matrix.global_scale;
  }
  d.matrix.format = WeightFormat::kNvfp4;
  d.matrix.scale_type = ScaleType::kE4m3;
  return d.matrix;
}

Result<SourceMatrix> decide_mxfp4(Decision& d) {
  if (d.scale.entry == nullptr) {
    return d.missing(
        fmt::format("{} (MXFP4), or {} and {} (NVFP4)", d.name_of("scale"), d.name_of("weight_scale"), d.name_of("weight_scale_2")));
  }
  if (d.scale.entry->dtype == DType::U8 && !d.hints.mxfp4) {
    return bad_input(
        fmt::format("{}; U8 scales are taken as e8m0 only where config.json states quant_method mxfp4, a format mxfp4-pack-quantized or "
                    "expert_dtype fp4: state it, or export the scale as F8_E8M0",
                    found(d.scale)));
  }
  if (d.scale.entry->dtype != DType::U8 && d.scale.entry->dtype != DType::F8_E8M0 && d.scale.entry->dtype != DType::F32) {
    return bad_input(
        fmt::format("{}, wanted F8_E8M0 (MXFP4), or F8_E4M3 with a weight_scale_2 (NVFP4), for a weight of FP4 codes: export the "
                    "scale again",
                    found(d.scale)));
  }
  if (d.matrix.cols % kMxfp4Group != 0) return wrong_columns(d, kMxfp4Group);
  if (!has_shape(d.scale, d.matrix.rows, d.matrix.cols / kMxfp4Group)) {
    return wrong_scale_shape(d, d.matrix.rows, d.matrix.cols / kMxfp4Group, "one scale for each 32 columns");
  }
  d.matrix.format = WeightFormat::kMxfp4;
  d.matrix.scale_type = d.scale.entry->dtype == DType::F32 ? ScaleType::kF32 : ScaleType::kE8m0;  // the loader rewrites F32
  return d.matrix;
}

Result<SourceMatrix> decide_bf16(Decision& d) {
  for (const LocatedTensor& extra : {d.scale, d.global}) {
    if (extra.entry == nullptr) continue;
    return bad_input(fmt::format("{} beside a BF16 weight \"{}\", which takes no scale; one of the two is wrong: export the matrix again",
                                 found(extra), printable(d.weight.entry->name)));
  }
  d.matrix.format = WeightFormat::kBf16;
  return d.matrix;
}

// config.json may name this very module's algorithm; then the tensors must agree.
std::optional<Error> check_stated(const Decision& d, WeightFormat format) {
  const std::string algorithm = stated_algorithm(d.hints.config->quant, d.base_name);
  const bool nvfp4 = algorithm.find("nvfp4") != std::string::npos, mxfp4 = algorithm.find("mxfp4") != std::string::npos;
  const bool fp8 = algorithm.starts_with("fp8") || algorithm.starts_with("w8a8_fp8");
  if ((!nvfp4 || format == WeightFormat::kNvfp4) && (!mxfp4 || format == WeightFormat::kMxfp4) && (!fp8 || format == WeightFormat::kFp8)) {
    return std::nullopt;
  }
  return bad_input(
      fmt::format("{}, which with its scales is {}; quantized_layers states {} for it: config.json and tensors are not of the same "
                  "checkpoint",
                  found(d.weight), format_name(format), printable(algorithm)));
}

}  // namespace

std::string_view format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8:
      return "FP8";
    case WeightFormat::kNvfp4:
      return "NVFP4";
    case WeightFormat::kMxfp4:
      return "MXFP4";
    default:
      return "BF16";
  }
}

FormatHints format_hints(const ModelConfig& config, std::string_view module) {
  FormatHints hints;
  hints.config = &config;
  const QuantHints& quant = config.quant;
  hints.ignored = matches_module(quant.ignore, module);
  hints.e8m0_block_scale = quant.scale_fmt == "ue8m0";
  auto says = [](const std::string& algorithm) { return algorithm.find("mxfp4") != std::string::npos; };
  const std::string stated = stated_algorithm(quant, module);
  hints.mxfp4 = says(quant.format) || quant.expert_dtype == "fp4" || quant.expert_dtype == "mxfp4" || says(stated) ||
                (stated.empty() && !hints.ignored && (says(quant.quant_method) || says(quant.quant_algo) || says(quant.moe_quant_algo)));
  return hints;
}

Result<SourceMatrix> decide_matrix(const MatrixTensors& tensors, std::string_view base_name, const FormatHints& hints) {
  const bool dialect = tensors[TensorPart::kWeightPacked].entry != nullptr;
  Decision d{tensors, base_name, hints, tensors[dialect ? TensorPart::kWeightPacked : TensorPart::kWeight], {},
             tensors[dialect ? TensorPart::kWeightGlobalScale : TensorPart::kWeightScale2]};
  if (std::optional<Error> error = check_dialect(d)) return *error;
  if (std::optional<Error> error = pick_scale(d)) return *error;
  if (d.weight.entry == nullptr) return bad_input(fmt::format("missing: {}; fetch the shard that holds it", d.name_of("weight")));
  const TensorEntry& weight = *d.weight.entry;
  if (weight.shape.size() != 2 || weight.shape[0] == 0 || weight.shape[1] == 0) {
    return bad_input(fmt::format("{}, wanted a matrix [rows, columns] that is not empty: export the tensor again", found(d.weight)));
  }
  const bool packed_bytes = weight.dtype == DType::U8 || weight.dtype == DType::I8;
  d.matrix.rows = weight.shape[0];
  d.matrix.cols = packed_bytes ? weight.shape[1] * 2 : weight.shape[1];
  d.matrix.codes = weight.data;
  d.matrix.scales = d.scale.entry == nullptr ? nullptr : d.scale.entry->data;
  Result<SourceMatrix> decided = [&]() -> Result<SourceMatrix> {
    if (weight.dtype == DType::F8_E4M3) return decide_fp8(d);
    if (weight.dtype == DType::BF16) return decide_bf16(d);
    if (packed_bytes || weight.dtype == DType::F4) {
      const bool e4m3 = d.scale.entry != nullptr && d.scale.entry->dtype == DType::F8_E4M3;
      return e4m3 || d.global.entry != nullptr ? decide_nvfp4(d) : decide_mxfp4(d);
    }
    return bad_input(fmt::format("{}, wanted F8_E4M3, BF16, or FP4 codes as U8, I8 or F4: convert the checkpoint", found(d.weight)));
  }();
  if (!decided) return decided;
  if (std::optional<Error> error = check_stated(d, decided.value().format)) return *error;
  return decided;
}

std::string contradicts_config(WeightFormat format, const FormatHints& hints) {
  const QuantHints& quant = hints.config->quant;
  if (hints.ignored) return {};
  auto differs = [&](const char* key, const std::string& value, bool agrees) {
    return agrees ? std::string{}
                  : fmt::format("config.json states {} {}, the experts' tensors are {}; the tensors decide", key, printable(value),
                                format_name(format));
  };
  const bool fp4 = format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4;
  constexpr std::string_view kMethods[] = {"", "fp8", "mxfp4", "nvfp4", "modelopt", "modelopt_fp4", "modelopt_mixed", "compressed-tensors"};
  if (std::find(std::begin(kMethods), std::end(kMethods), quant.quant_method) == std::end(kMethods)) {
    return differs("quant_method", quant.quant_method, false);
  }
  const bool stated_nvfp4 = quant.moe_quant_algo.find("nvfp4") != std::string::npos || quant.quant_algo.find("nvfp4") != std::string::npos;
  if (stated_nvfp4 && format == WeightFormat::kNvfp4 && quant.group_size && *quant.group_size != kNvfp4Group) {
    return differs("group_size", fmt::to_string(*quant.group_size), false) + fmt::format(" (groups of {})", kNvfp4Group);
  }
  if (quant.format.starts_with("nvfp4")) return differs("format", quant.format, format == WeightFormat::kNvfp4);
  if (quant.format.starts_with("mxfp4")) return differs("format", quant.format, format == WeightFormat::kMxfp4);
  if (!quant.moe_quant_algo.empty()) {
    const bool wants_nvfp4 = quant.moe_quant_algo.find("nvfp4") != std::string::npos;
    const bool wants_mxfp4 = quant.moe_quant_algo.find("mxfp4") != std::string::npos;
    return differs("moe_quant_algo", quant.moe_quant_algo,
                   (!wants_nvfp4 || format == WeightFormat::kNvfp4) && (!wants_mxfp4 || format == WeightFormat::kMxfp4));
  }
  if (quant.expert_dtype == "fp4") return differs("expert_dtype", quant.expert_dtype, fp4);
  if (quant.expert_dtype == "fp8") return differs("expert_dtype", quant.expert_dtype, format == WeightFormat::kFp8);
  if (quant.quant_method == "nvfp4" || quant.quant_method == "modelopt_fp4")
    return differs("quant_method", quant.quant_method, format == WeightFormat::kNvfp4);
  if (quant.quant_method == "mxfp4") return differs("quant_method", quant.quant_method, format == WeightFormat::kMxfp4);
  if (quant.quant_method == "fp8" && quant.quant_algo.empty())
    return differs("quant_method", quant.quant_method, format == WeightFormat::kFp8);
  if (quant.quant_algo.find("nvfp4") != std::string::npos) return differs("quant_algo", quant.quant_algo, format == WeightFormat::kNvfp4);
  return {};
}

}  // namespace monomoe
