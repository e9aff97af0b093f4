#include "cli/frameworks/conversion.hpp"
#include "cli/frameworks/uniform_pipeline.hpp"
#include "core/text/json_text.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/orders/order_csv.hpp"
#include "schedules/orders/schedule.hpp"

#include <nlohmann/json.hpp>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto torch_name = "torch";

Json stages_of(const UniformPipeline& pipeline, const schedules::PipelineShape& shape, const Workload& workload)
{
  const std::size_t width = pipeline.ranks.size() / pipeline.devices;
  Json stages = Json::array();
  for (std::size_t stage = 0; stage < shape.stages(); ++stage) {
    const auto [first, last] = pipeline.stages[stage];
    Json layers = Json::array();
    for (std::size_t layer = first; layer <= last; ++layer) layers.push_back(workload.layers[layer].name);
    const std::size_t rank = shape.rank_of_stage[stage];
    Json devices = Json::array();
    for (std::size_t i = 0; i < width; ++i) devices.push_back(pipeline.ranks[rank * width + i]);
    stages.push_back(
        {{"rank", rank}, {"devices", devices}, {"first_layer", first}, {"last_layer", last}, {"layers", layers}});
  }
  return stages;
}

}  // namespace

Conversion to_torch(const Plan& plan, const Workload& workload, const Cluster&)
{
  std::vector<std::string> faults;
  const UniformPipeline pipeline = uniform_pipeline(plan, torch_name, faults);
  if (!faults.empty()) return {{}, faults};
  if (pipeline.shards > 1 || pipeline.context > 1 || plan.experts.divides()) {
    faults.push_back("stages: divide layers, sequences or experts; torch's pipelines have whole ones");
    return {{}, faults};
  }
  const Plan single = single_pipeline(plan, pipeline, torch_name, faults);
  if (!faults.empty()) return {{}, faults};
  const auto shape = schedules::shape_of(single);
  const Json json = {{"schema", "isobar-stages/1"},
                     {"microbatches", pipeline.microbatches},
                     {"micro_batch", workload.micro_batch},
                     {"stages", stages_of(pipeline, shape, workload)}};
  return {{{"schedule.csv", schedules::orders_to_csv(shape, schedules::orders_of(single))},
           {"stages.json", json_lines(json)}},
          {}};
}

}  // namespace isobar::cli
