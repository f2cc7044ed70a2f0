// Reads token files; every refusal names file, tensor, found and wanted.
#include "token_input.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "output.hpp"

namespace monomoe::cli {
namespace {

constexpr int64_t kMaxTopk = 32;

std::optional<monomoe_tensor> find(const monomoe_tensor_file* file, const char* name) {
  for (int64_t i = 0; i < monomoe_tensor_file_count(file); ++i) {
    monomoe_tensor tensor = {};
    check(monomoe_tensor_file_at(file, i, &tensor), Origin::kFile);
    if (std::strcmp(tensor.name, name) == 0) return tensor;
  }
  return std::nullopt;
}

std::string found_text(const monomoe_tensor& tensor) {
  return fmt::format("{} {}", tensor.dtype, shape_text({tensor.dims, static_cast<size_t>(tensor.num_dims)}));
}

std::string wanted_shape(const std::vector<int64_t>& dims, const std::string& free_names) {
  std::string text;
  for (size_t i = 0; i < dims.size(); ++i)
    text += fmt::format("{}{}", i ? ", " : "", dims[i] >= 0 ? std::to_string(dims[i]) : std::string(1, i < free_names.size() ? free_names[i] : 'N'));
  return fmt::format("[{}]", text);
}

bool shape_fits(const monomoe_tensor& tensor, const std::vector<int64_t>& dims) {
  if (tensor.num_dims != static_cast<int32_t>(dims.size())) return false;
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] >= 0 && dims[i] != tensor.dims[i]) return false;
  return true;
}

// I32 or I64 as I64.
std::vector<int64_t> read_ids(const std::string& path, const monomoe_tensor& tensor, const std::vector<int64_t>& dims,
                              const std::string& meaning) {
  if (std::strcmp(tensor.dtype, "I32") == 0) {
    const std::vector<int32_t> narrow = read_tensor<int32_t>(path, tensor, "I32", dims, meaning);
    return {narrow.begin(), narrow.end()};
  }
  if (std::strcmp(tensor.dtype, "I64") != 0)
    input_error(fmt::format("{}: tensor '{}' is {}, wanted I32 or I64 {}: {}", path, tensor.name, found_text(tensor),
                            wanted_shape(dims, "TK"), meaning));
  return read_tensor<int64_t>(path, tensor, "I64", dims, meaning);
}

void check_ids(const std::string& path, const TokenInput& input, int64_t num_experts, const std::string& where) {
  for (size_t i = 0; i < input.ids.size(); ++i)
    if (input.ids[i] >= num_experts)
      input_error(fmt::format("{}: tensor 'topk_ids' holds {} at token {}, slot {}, but {} has experts 0..{}; a negative id drops a slot",
                              path, input.ids[i], static_cast<int64_t>(i) / input.topk, static_cast<int64_t>(i) % input.topk, where,
                              num_experts - 1));
}

void load_routing(const std::string& path, const monomoe_tensor& ids, const monomoe_tensor& weights, const monomoe_layer_info& layer,
                  const std::string& where, TokenInput& input) {
  input.ids = read_ids(path, ids, {input.tokens, -1}, "one row of expert ids for each row of 'x'");
  input.topk = ids.dims[1];
  if (input.topk < 1 || input.topk > kMaxTopk)
    input_error(fmt::format("{}: tensor 'topk_ids' is {}: slots per token must be 1..{}", path, found_text(ids), kMaxTopk));
  input.weights = read_tensor<float>(path, weights, "F32", {input.tokens, input.topk}, "the shape of 'topk_ids'");
  check_ids(path, input, layer.num_experts, where);
  input.has_routing = true;
}

// What the file must hold when the checkpoint's router is to decide.
void load_for_router(const std::string& path, const monomoe_tensor_file* file, const monomoe_layer_info& layer, const std::string& where,
                     TokenInput& input) {
  if (!layer.has_router)
    input_error(fmt::format("{}: no tensors 'topk_ids' and 'topk_weights', and {} has no router that could decide; add both tensors", path,
                            where));
  if (layer.topk < 0)
    input_error(fmt::format("{}: no tensors 'topk_ids' and 'topk_weights', and config.json of {} does not say how many experts a token "
                            "takes (num_experts_per_tok); add both tensors",
                            path, where));
  input.topk = layer.topk;
  if (!layer.needs_token_ids) return;
  const std::optional<monomoe_tensor> token_ids = find(file, "token_ids");
  if (!token_ids)
    input_error(fmt::format("{}: tensor 'token_ids' (I64 [{}]) is missing: {} is a hash layer and routes by token id; add it, or "
                            "'topk_ids' with 'topk_weights'",
                            path, input.tokens, where));
  input.token_ids = read_tensor<int64_t>(path, *token_ids, "I64", {input.tokens}, "one token id for each row of 'x'");
}

}  // namespace

template <class T>
std::vector<T> read_tensor(const std::string& path, const monomoe_tensor& tensor, const char* dtype, const std::vector<int64_t>& dims,
                           const std::string& meaning) {
  if (std::strcmp(tensor.dtype, dtype) != 0 || !shape_fits(tensor, dims))
    input_error(fmt::format("{}: tensor '{}' is {}, wanted {} {}: {}", path, tensor.name, found_text(tensor), dtype,
                            wanted_shape(dims, "TK"), meaning));
  std::vector<T> values(tensor.bytes / sizeof(T));
  if (tensor.bytes != 0) std::memcpy(values.data(), tensor.data, tensor.bytes);
  return values;
}
template std::vector<uint16_t> read_tensor(const std::string&, const monomoe_tensor&, const char*, const std::vector<int64_t>&,
                                           const std::string&);

TokenInput load_tokens(const std::string& path, const monomoe_layer_info& layer, const std::string& where) {
  const TensorFile file = open_tensor_file(path);
  TokenInput input;
  const std::optional<monomoe_tensor> x = find(file.get(), "x");
  if (!x) input_error(fmt::format("{}: no tensor 'x'; wanted BF16 [tokens, {}], the rows that enter {}; add it", path, layer.hidden, where));
  input.x = read_tensor<uint16_t>(path, *x, "BF16", {-1, layer.hidden}, fmt::format("tokens by the hidden size of {}", where));
  input.tokens = x->dims[0];
  input.hidden = layer.hidden;
  const std::optional<monomoe_tensor> ids = find(file.get(), "topk_ids"), weights = find(file.get(), "topk_weights");
  if (ids.has_value() != weights.has_value())
    input_error(fmt::format("{}: tensor '{}' is there but '{}' is missing; give both, or neither to let the checkpoint's router decide",
                            path, ids ? "topk_ids" : "topk_weights", ids ? "topk_weights" : "topk_ids"));
  if (ids) {
    load_routing(path, *ids, *weights, layer, where, input);
  } else {
    load_for_router(path, file.get(), layer, where, input);
  }
  input.bytes = input.x.size() * 2 + input.token_ids.size() * 8 + (ids ? ids->bytes + weights->bytes : 0);
  return input;
}

}  // namespace monomoe::cli
