// What a layer run says about itself, as JSON and for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "layer_run.hpp"

namespace monomoe::cli {

Json count_summary(const std::vector<int64_t>& counts, std::span<const int64_t> ids) {
  std::vector<int64_t> sorted = counts;
  std::sort(sorted.begin(), sorted.end());
  const int64_t live = std::count_if(ids.begin(), ids.end(), [](int64_t id) { return id >= 0; });
  const int64_t empty = std::count(sorted.begin(), sorted.end(), 0);
  return {{"live_slots", live},        {"dropped_slots", static_cast<int64_t>(ids.size()) - live},
          {"min", sorted.front()},     {"median", sorted[sorted.size() / 2]},
          {"max", sorted.back()},      {"empty_experts", empty}};
}

Json backend_json(const LayerJob& job) {
  return {{"requested", job.options.context.backend},
          {"taken", backend_word(monomoe_context_backend(job.context.get(), nullptr))},
          {"why", job.backend_why},
          {"launch", job.options.context.launch}};
}

Json job_json(const LayerJob& job, const char* command) {
  const LayerOptions& options = job.options;
  Json clamp = {{"limit", nullptr}, {"source", job.clamp.source}};
  if (job.clamp.limit > 0) clamp["limit"] = job.clamp.limit;
  Json router = {{"source", job.input.has_routing ? "input" : "checkpoint"}};
  if (!job.input.has_routing && !std::isnan(job.info.routed_scaling_factor)) router["routed_scaling_factor"] = job.info.routed_scaling_factor;
  Json placement = {{"source", job.placement ? options.placement : "default"}};
  if (job.placement) {
    placement["copies"] = job.placement->expert.size();
    placement["experts_per_rank"] = job.placement->experts_per_rank(options.num_ranks);
  }
  return {{"command", command},
          {"version", monomoe_version()},
          {"directory", options.directory},
          {"layer", options.layer},
          {"input", options.input},
          {"backend", backend_json(job)},
          {"format", format_word(job.info.format)},
          {"hidden", job.info.hidden},
          {"intermediate", job.info.intermediate},
          {"experts", job.info.num_experts},
          {"topk", job.input.topk},
          {"ranks", options.num_ranks},
          {"tokens", job.input.tokens},
          {"tokens_per_rank", job.tokens_per_rank},
          {"capacity", job.capacity},
          {"clamp", clamp},
          {"router", router},
          {"shared_expert", options.shared_expert},
          {"placement", placement},
          {"expert_counts", count_summary(count_experts(job.input.ids, job.info.num_experts), job.input.ids)}};
}

std::string job_text(const LayerJob& job) {
  const Json json = job_json(job, "");
  const Json& counts = json["expert_counts"];
  std::string text = fmt::format("{}: {}, {} experts, top-{}, hidden {}, intermediate {}\n", job.options.where(),
                                 json["format"].get<std::string>(), job.info.num_experts, job.input.topk, job.info.hidden,
                                 job.info.intermediate);
  text += fmt::format("backend    {}: {}\n", json["backend"]["taken"].get<std::string>(), job.backend_why);
  text += fmt::format("ranks      {}, tokens {} dealt {}, capacity {}\n", job.options.num_ranks, job.input.tokens,
                      list_text(job.tokens_per_rank, 64), job.capacity);
  text += fmt::format("routing    {}\n", job.input.has_routing ? "ids and weights of " + job.options.input + ", used as given"
                                                                : "by the checkpoint's router: " + inline_text(json["router"]));
  text += fmt::format("clamp      {}\n", job.clamp.limit > 0 ? fmt::format("{:g} ({})", job.clamp.limit, job.clamp.source)
                                                             : job.clamp.source == "option" ? "none (option)" : "none");
  text += fmt::format("experts    tokens min {}, median {}, max {}; {} empty; {} slots dropped\n", counts["min"].get<int64_t>(),
                      counts["median"].get<int64_t>(), counts["max"].get<int64_t>(), counts["empty_experts"].get<int64_t>(),
                      counts["dropped_slots"].get<int64_t>());
  text += fmt::format("placement  {}\n", job.placement ? inline_text(json["placement"]) : "in order, as even as possible");
  return text;
}

}  // namespace monomoe::cli
