#include "cli/frameworks/conversion.hpp"
#include "cli/frameworks/model_items.hpp"
#include "cli/frameworks/uniform_pipeline.hpp"
#include "core/errors.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto deepspeed_name = "DeepSpeed";

/// The subclass that has the bounds: partition_method can only balance layers. `intervals` is
/// activation_checkpoint_interval.
constexpr auto module_text = R"("""The stages of a plan for DeepSpeed 0.19. Rank i has slot i of hostfile.

    model = PlannedPipeline(layers=LAYERS, topology=topology(), loss_fn=LOSS)
    engine, *_ = deepspeed.initialize(model=model, config="deepspeed.json", model_parameters=model.parameters())
"""
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

BOUNDS = [{bounds}]  # stage i has layers BOUNDS[i] to BOUNDS[i + 1] - 1


def topology():
    """Ranks by stage, then replica, then shard."""
    return PipeModelDataParallelTopology(num_pp={stages}, num_mp={shards}, num_dp={replicas})


class PlannedPipeline(PipelineModule):
    """A PipelineModule of {layers} layers with the stages of the plan."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, activation_checkpoint_interval={interval}, **kwargs)

    def _partition_layers(self, method="uniform"):
        if len(self._layer_specs) != BOUNDS[-1]:
            raise ValueError(f"{{len(self._layer_specs)}} layers; the plan has {{BOUNDS[-1]}}")
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = BOUNDS
        self._set_bounds(start=BOUNDS[stage], stop=BOUNDS[stage + 1])
)";

class DeepSpeedFiles {
 public:
  DeepSpeedFiles(const Plan& plan, const Workload& workload, const Cluster& cluster)
      : plan_(plan), workload_(workload), cluster_(cluster)
  {
  }

  Conversion conversion()
  {
    pipeline_ = uniform_pipeline(plan_, deepspeed_name, faults_);
    add_bounds();
    if (faults_.empty()) check();
    const std::size_t interval = checkpoint_interval();
    const std::string hosts = hostfile();
    if (!faults_.empty()) return {{}, std::move(faults_)};
    const std::string module = fmt::format(fmt::runtime(module_text), fmt::arg("bounds", fmt::join(bounds_, ", ")),
                                           fmt::arg("stages", pipeline_.devices), fmt::arg("shards", pipeline_.shards),
                                           fmt::arg("replicas", pipeline_.replicas), fmt::arg("layers", bounds_.back()),
                                           fmt::arg("interval", interval));
    return {{{"deepspeed.json", json_lines(configuration())}, {"planned_pipeline.py", module}, {"hostfile", hosts}},
            {}};
  }

 private:
  void refuse(const std::string& where, const std::string& what, const std::string& deepspeed_does)
  {
    faults_.push_back(fmt::format("{}: {}; {} {}", where, what, deepspeed_name, deepspeed_does));
  }

  void add_bounds()
  {
    bounds_ = {0};
    if (items_of(workload_).empty()) {
      for (const auto& [first, last] : pipeline_.stages) bounds_.push_back(last + 1);
      return;
    }
    for (const auto& letters : letters_of_stages(workload_, pipeline_.stages, deepspeed_name, faults_)) {
      bounds_.push_back(bounds_.back() + letters.size());
    }
  }

  void check()
  {
    const Plan single = single_pipeline(plan_, pipeline_, deepspeed_name, faults_);
    if (pipeline_.chunks > 1) {
      refuse("stages", fmt::format("devices have {} each", pipeline_.chunks), "has one on each device");
    } else if (!has_order_of(single, {})) {
      refuse("schedule", on_one_line(text_of(plan_.goal.schedule)), "has 1f1b, without warm_up of your own");
    }
    if (pipeline_.context > 1) refuse("context", text_of(plan_.context), "divides no sequences in pipelines");
    if (plan_.experts.divides()) refuse("experts", text_of(plan_.experts), "divides them in the model's own layers");
    if (plan_.sync.sharded > Sharding::Optimizer && pipeline_.replicas > 1) {
      refuse("sync.sharded", std::string(name_of(plan_.sync.sharded)), "divides at most the optimizer in pipelines");
    }
  }

  /// 0: nothing recomputes; 1: each layer by itself.
  std::size_t checkpoint_interval()
  {
    if (!workload_.recompute_operators.empty()) {
      refuse("recompute_operators", "are of the workload", "recomputes whole layers");
    }
    if (plan_.recompute.empty()) return 0;
    if (!recomputes_all_blocks(plan_, workload_)) {
      refuse("recompute", "is of some layers", "recomputes all of a stage, or none");
    }
    return 1;
  }

  /// A line for each host, in the order of the ranks: DeepSpeed's launcher numbers them by host.
  std::string hostfile()
  {
    std::vector<std::pair<std::string, std::size_t>> slots;
    for (const auto& host : hosts_of_ranks(pipeline_.ranks, cluster_)) {
      if (slots.empty() || slots.back().first != host) slots.emplace_back(host, 0);
      ++slots.back().second;
    }
    std::set<std::string> seen;
    std::string lines;
    for (const auto& [host, count] : slots) {
      if (!seen.insert(host).second) {
        refuse("stages", fmt::format("ranks of host {} lie apart", shown(host)), "numbers the ranks of a host in turn");
        break;
      }
      lines += fmt::format("{} slots={}\n", host, count);
    }
    return lines;
  }

  Json configuration() const
  {
    Json json = {
        {"train_batch_size", workload_.micro_batch * pipeline_.microbatches * pipeline_.replicas},
        {"train_micro_batch_size_per_gpu", workload_.micro_batch},
        {"gradient_accumulation_steps", pipeline_.microbatches},
        {"zero_optimization", {{"stage", plan_.sync.sharded == Sharding::Optimizer ? 1 : 0}}},
    };
    if (workload_.dtype == DType::BFloat16) json["bf16"] = {{"enabled", true}};
    if (workload_.dtype == DType::Float16) json["fp16"] = {{"enabled", true}};
    if (pipeline_.replicas > 1) {
      json["communication_data_type"] = plan_.sync.summed == DType::Float32    ? "fp32"
                                        : plan_.sync.summed == DType::BFloat16 ? "bf16"
                                                                               : "fp16";
    }
    if (workload_.training.clip_norm) json["gradient_clipping"] = *workload_.training.clip_norm;
    return json;
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  UniformPipeline pipeline_;
  std::vector<std::size_t> bounds_;
  std::vector<std::string> faults_;
};

}  // namespace

Conversion to_deepspeed(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  return DeepSpeedFiles(plan, workload, cluster).conversion();
}

}  // namespace isobar::cli
