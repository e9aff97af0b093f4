#include "cli/commands/order_file.hpp"
#include "cli/convert/imported_pipeline.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "core/text/document.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace isobar::cli {

ImportedPipeline pipeline_of_torch(const std::string& folder, const Workload& workload)
{
  const auto file = (std::filesystem::path(folder) / "stages.json").string();
  const auto document = parse_json(read_file(file), file);
  FaultList faults(file);
  MappingReader reader(document, "", faults);
  reader.required_choice("schema", {"isobar-stages/1"});
  ImportedPipeline made;
  const auto microbatches = reader.required_count("microbatches", 1, most_repetitions);
  const auto micro_batch = reader.required_count("micro_batch", 1, most_repetitions);
  if (faults.empty() && micro_batch != workload.micro_batch) {
    reader.add_fault("micro_batch", fmt::format("{}; {} has {}: add --set micro_batch={}", micro_batch,
                                                shown(workload.name), workload.micro_batch, micro_batch));
  }
  std::vector<std::size_t> rank_of_stage;
  std::vector<std::vector<std::string>> devices;  // by rank
  std::size_t index = 0;
  for (const auto& node : reader.required_sequence("stages")) {
    MappingReader stage(node, fmt::format("stages[{}].", index++), faults);
    const auto rank = stage.required_count("rank", 0, workload.layers.size());
    const auto first = stage.required_count("first_layer", 0, workload.layers.size() - 1);
    const auto last = stage.required_count("last_layer", 0, workload.layers.size() - 1);
    std::vector<std::string> names;
    for (const auto& device : stage.required_sequence("devices")) names.push_back(device.scalar);
    stage.required_sequence("layers");
    stage.refuse_unknown();
    if (!faults.empty()) continue;
    if (first > last || first != (made.stages.empty() ? 0 : made.stages.back().second + 1)) {
      stage.add_fault("first_layer", "stages have all layers once and in order");
    }
    if (rank > devices.size()) stage.add_fault("rank", "ranks are numbered as stages name them first");
    if (!faults.empty()) continue;
    if (rank == devices.size()) devices.push_back(names);
    if (devices[rank] != names || names.empty() || names.size() != devices.front().size()) {
      stage.add_fault("devices", "a rank has the same ones in all stages, as many as other ranks");
    }
    made.stages.emplace_back(first, last);
    rank_of_stage.push_back(rank);
  }
  reader.refuse_unknown();
  if (faults.empty() && (made.stages.empty() || made.stages.back().second + 1 != workload.layers.size())) {
    reader.add_fault("stages", fmt::format("end before the last of {}", counted(workload.layers.size(), "layer")));
  }
  faults.throw_if_any();
  made.chunks = made.stages.size() / devices.size();
  const auto lies = [&](schedules::Folding folding) {
    for (std::size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
      if (schedules::rank_of_stage(folding, stage, devices.size()) != rank_of_stage[stage]) return false;
    }
    return rank_of_stage.size() % devices.size() == 0;
  };
  made.is_v = made.chunks == 2 && rank_of_stage.size() == 2 * devices.size() && lies(schedules::Folding::V);
  if (!made.is_v && !lies(schedules::Folding::RoundRobin)) {
    throw InputError(file,
                     "stages: lie on their ranks neither in turn nor in a V; isobar schedule import takes others");
  }
  made.replicas = devices.front().size();
  made.microbatches = microbatches * made.replicas;
  schedules::PipelineShape shape{{}, rank_of_stage, microbatches};
  for (const auto& names : devices) {
    shape.devices.push_back(names.front());
    made.ranks.insert(made.ranks.end(), names.begin(), names.end());
  }
  const auto by_device = read_order_file((std::filesystem::path(folder) / "schedule.csv").string(), shape, false);
  std::vector<Order> orders;
  for (const auto& device : shape.devices) orders.push_back(by_device.at(device));
  set_orders(std::move(orders), shape, made);
  return made;
}

}  // namespace isobar::cli
