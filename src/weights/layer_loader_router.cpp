// The router's tensors: types and shapes against the experts, then their values.
#include <fmt/format.h>

#include "weights/layer_loader.hpp"
#include "weights/scan.hpp"

namespace monomoe {

void LayerLoader::load_router() {
  const int64_t experts = expert_count_, problems_before = problems_.count();
  auto wrong = [&](const LocatedTensor& tensor, std::string_view wanted) {
    problems_.add(fmt::format("{}: found {} {}, wanted {}: export the tensor again", tensor_word(tensor), dtype_name(tensor.entry->dtype),
                              shape_text(tensor.entry->shape), wanted));
  };
  const LocatedTensor &weight = tensors_.router_weight, &bias = tensors_.router_bias, &table = tensors_.hash_table;
  if (weight.entry == nullptr) {
    for (const LocatedTensor& orphan : {bias, table}) {
      if (orphan.entry != nullptr)
        problems_.add(fmt::format("missing: \"{}gate.weight\" (beside {}); fetch the shard that holds it", printable(tensors_.prefix),
                                  tensor_word(orphan)));
    }
    return;
  }
  RouterTensors router;
  router.experts = experts;
  router.hidden = geometry_.hidden;
  auto is_float = [](DType dtype) { return dtype == DType::BF16 || dtype == DType::F32; };
  if (!is_float(weight.entry->dtype) || weight.entry->shape != std::vector<int64_t>{experts, geometry_.hidden}) {
    wrong(weight, fmt::format("BF16 or F32 [{}, {}] (experts, hidden)", experts, geometry_.hidden));
  }
  router.weight_type = weight.entry->dtype;
  router.weight = weight.entry->data;
  if (bias.entry != nullptr) {
    if (!is_float(bias.entry->dtype) || bias.entry->shape != std::vector<int64_t>{experts})
      wrong(bias, fmt::format("F32 or BF16 [{}] (experts)", experts));
    router.bias_type = bias.entry->dtype;
    router.bias = bias.entry->data;
  }
  if (table.entry != nullptr) {
    const std::vector<int64_t>& shape = table.entry->shape;
    const bool whole = table.entry->dtype == DType::I64 || table.entry->dtype == DType::I32;
    if (!whole || shape.size() != 2 || shape[0] == 0 || shape[1] == 0 || (config_.topk && shape[1] != *config_.topk)) {
      wrong(table, fmt::format("I64 or I32 [vocabulary, {}]", config_.topk ? fmt::to_string(*config_.topk) : "top-k"));
    } else {
      router.vocabulary = shape[0];
      router.table_topk = shape[1];
    }
    if (layer_.mtp || (config_.hash_layers && layer_.index >= *config_.hash_layers)) {
      problems_.add(fmt::format(
          "{}: found a hash table in layer {}, wanted none outside the first {} layers that config.json states (num_hash_layers): "
          "config.json and tensors are not of the same checkpoint",
          tensor_word(table), layer_.label(), config_.hash_layers.value_or(0)));
    }
    router.table_type = table.entry->dtype;
    router.table = table.entry->data;
  }
  out_.router = router;
  router_readable_ = problems_.count() == problems_before;
}

void LayerLoader::scan_router() {
  if (!router_readable_) return;
  auto check = [&](const LocatedTensor& tensor, DType dtype, int64_t rows, int64_t columns) {
    const ScanResult result = scan_values(tensor.entry->data, dtype == DType::BF16, rows, columns);
    for (const ScanFinding& finding : result.findings) {
      problems_.add(fmt::format("{}: found {} at row {}, column {}; {}", tensor_word(tensor), finding.what, finding.row, finding.column,
                                finding.kind == ScanFinding::Kind::kNaN
                                    ? "it would turn outputs into NaN: export the tensor again"
                                    : "a router's values must be finite: export the tensor again"));
    }
    problems_.add_uncounted(result.count - static_cast<int64_t>(result.findings.size()));
  };
  check(tensors_.router_weight, out_.router->weight_type, out_.router->experts, out_.router->hidden);
  if (out_.router->bias != nullptr) check(tensors_.router_bias, out_.router->bias_type, 1, out_.router->experts);
  if (out_.router->table != nullptr) scan_table(*out_.router);
}

// Each of a hash layer's entries is an expert.
void LayerLoader::scan_table(const RouterTensors& router) {
  int64_t bad = 0;
  for (int64_t i = 0; i < router.vocabulary * router.table_topk; ++i) {
    const int64_t expert = hash_table_entry(router, i);
    if ((expert >= 0 && expert < router.experts) || ++bad > kMaxFindings) continue;
    problems_.add(fmt::format("{}: found expert {} at row {}, column {}, wanted 0 to {}: export the tensor again",
                              tensor_word(tensors_.hash_table), expert, i / router.table_topk, i % router.table_topk, router.experts - 1));
  }
  if (bad > kMaxFindings) problems_.add_uncounted(bad - kMaxFindings);
}

}  // namespace monomoe
