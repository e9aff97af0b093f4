#include "cli/frameworks/conversion.hpp"
#include "cli/frameworks/megatron_layout.hpp"
#include "cli/frameworks/megatron_model.hpp"
#include "cli/frameworks/model_items.hpp"
#include "cli/frameworks/shell_text.hpp"
#include "cli/frameworks/uniform_pipeline.hpp"
#include "core/compute/recompute_modules.hpp"
#include "core/model/model_sizes.hpp"
#include "core/plan/system_rules.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

namespace isobar::cli {

namespace {

constexpr auto megatron_name = "Megatron-Core";

class MegatronArguments {
 public:
  MegatronArguments(const Plan& plan, const Workload& workload, const Cluster& cluster)
      : plan_(plan), workload_(workload), cluster_(cluster)
  {
  }

  Conversion conversion()
  {
    pipeline_ = uniform_pipeline(plan_, megatron_name, faults_);
    add_layout();
    if (faults_.empty()) add_schedule();
    if (faults_.empty()) {
      model_ = megatron_model(workload_);
      add_degrees();
      add_batches();
      add_recomputation();
      add_sums();
    }
    if (!faults_.empty()) return {{}, std::move(faults_)};
    const auto ranks = hosts_of_ranks(pipeline_.ranks, cluster_);
    return {{{"arguments.sh", heading() + model_text() + shell_array("PLAN_ARGUMENTS", arguments_, {})},
             {"hostfile", fmt::format("{}\n", fmt::join(ranks, "\n"))}},
            {}};
  }

 private:
  void refuse(const std::string& where, const std::string& what, const std::string& megatron_does)
  {
    faults_.push_back(fmt::format("{}: {}; {} {}", where, what, megatron_name, megatron_does));
  }

  void add(const std::string& option) { arguments_.push_back({option, {}}); }
  template <typename Value>
  void add(const std::string& option, const Value& value)
  {
    arguments_.push_back({option, {fmt::to_string(value)}});
  }

  void add_layout()
  {
    const auto letters = letters_of_stages(workload_, pipeline_.stages, megatron_name, faults_);
    if (letters.empty()) return;
    check_predictions(letters);
    layout_ = layout_of(letters);
  }

  /// Where blocks of multi-token prediction may be.
  void check_predictions(const std::vector<std::string>& letters)
  {
    std::vector<std::size_t> with;
    for (std::size_t stage = 0; stage < letters.size(); ++stage) {
      if (letters[stage].find('m') != std::string::npos) with.push_back(stage);
    }
    if (with.empty() || pipeline_.devices == 0) return;
    if (with.size() > 1) {
      refuse("stages", fmt::format("blocks of multi-token prediction are in {} of them", with.size()),
             "has all in one");
    } else if (pipeline_.chunks > 1 && with.front() + pipeline_.devices < letters.size()) {
      refuse("stages", "blocks of multi-token prediction are not in a device's last stage", "has them there");
    } else if (pipeline_.chunks > 1 && with.front() % pipeline_.devices == 0) {
      refuse("stages", "blocks of multi-token prediction are on the first devices", "has them on others");
    }
  }

  void add_schedule()
  {
    const Plan single = single_pipeline(plan_, pipeline_, megatron_name, faults_);
    const auto& given = plan_.goal.schedule;
    add("--pipeline-model-parallel-size", pipeline_.devices);
    if (pipeline_.devices * pipeline_.chunks > 1) add("--pipeline-model-parallel-layout", layout_);
    if (pipeline_.chunks == 1) {
      if (!has_order_of(single, {})) {
        refuse("schedule", on_one_line(text_of(given)), "has 1f1b and interleaved, without warm_up of your own");
      }
      return;
    }
    const auto found = given.numbers.find("group");
    const std::uint64_t group = found == given.numbers.end() ? pipeline_.devices : found->second.front();
    const ScheduleChoice interleaved = {"interleaved", {{"chunks", {pipeline_.chunks}}, {"group", {group}}}};
    if (!has_order_of(single, interleaved)) {
      const bool is_same = given.name == "interleaved";
      refuse("schedule",
             is_same ? fmt::format("{} of a replica, for groups of {}",
                                   counted(pipeline_.microbatches, "micro-batch", "es"), group)
                     : on_one_line(text_of(given)),
             is_same ? "has groups of as many, the last one of at least as many as devices of a pipeline"
                     : "has 1f1b and interleaved, whose devices have every p-th stage");
      return;
    }
    // Between two devices Megatron-Core can only overlap them.
    if (plan_.transfers.blocking && pipeline_.devices > 2) add("--no-overlap-p2p-communication");
    if (group != pipeline_.devices) add("--microbatch-group-size-per-virtual-pipeline-stage", group);
  }

  bool has_experts() const
  {
    return std::ranges::any_of(workload_.layers, [](const Layer& layer) { return layer.experts.has_value(); });
  }

  void add_degrees()
  {
    add("--tensor-model-parallel-size", pipeline_.shards);
    if (pipeline_.divides_sequences_among_shards) add("--sequence-parallel");
    add("--context-parallel-size", pipeline_.context);
    if (pipeline_.context > 1) {
      static const std::map<ContextExchange, std::string> names = {{ContextExchange::Ring, "p2p"},
                                                                   {ContextExchange::AllGather, "all_gather"},
                                                                   {ContextExchange::AllToAll, "a2a"}};
      add("--cp-comm-type", names.at(plan_.context.exchange));
    }
    if (has_experts() || plan_.experts.divides()) {
      add("--expert-model-parallel-size", plan_.experts.parts(pipeline_.shards));
      add("--expert-tensor-parallel-size", plan_.experts.are_whole ? 1 : pipeline_.shards);
      if (plan_.experts.divides()) add("--moe-token-dispatcher-type", "alltoall");
      if (pipeline_.shards > 1 && !pipeline_.divides_sequences_among_shards) {
        refuse("stages", "shards do not divide sequences", "needs splits: sequence where a model has experts");
      }
    }
    if (overlaps_experts(plan_.goal.schedule)) {
      if (pipeline_.devices > 1 && pipeline_.chunks == 1) {
        refuse("schedule.overlap_experts", "is of 1f1b", "has it under interleaved");
      }
      add("--overlap-moe-expert-parallel-comm");
    }
    const auto* flags = framework_of(plan_);
    if (flags != nullptr && flags->hides_shard_collectives && pipeline_.shards > 1 &&
        pipeline_.divides_sequences_among_shards) {
      add("--tp-comm-overlap");
    }
  }

  void add_batches()
  {
    add("--micro-batch-size", workload_.micro_batch);
    add("--global-batch-size", workload_.micro_batch * pipeline_.microbatches * pipeline_.replicas);
  }

  void add_recomputation()
  {
    if (!workload_.recompute_operators.empty()) {
      add_operators();
      return;
    }
    if (plan_.recompute.empty()) {
      if (model_.recomputes_attention) add_recomputed({"core_attn"});
      return;
    }
    add("--recompute-granularity", "full");
    if (recomputes_all_blocks(plan_, workload_)) {
      add("--recompute-method", "uniform");
      add("--recompute-num-layers", 1);
      return;
    }
    const std::set<std::size_t> layers(plan_.recompute.begin(), plan_.recompute.end());
    const auto items = items_of(workload_);
    // By stage, whether each of its blocks recomputes.
    std::vector<std::vector<bool>> blocks(pipeline_.stages.size());
    for (const auto& item : items) {
      std::size_t count = 0;
      for (std::size_t layer = item.first; layer <= item.last; ++layer) count += layers.count(layer);
      if (count == 0 && (item.letter == 'E' || item.letter == 'L')) continue;
      if (item.letter == 'E' || item.letter == 'L') {
        refuse("recompute", fmt::format("has layer {}, which is no block", item.first), "recomputes blocks");
        return;
      }
      if (count != 0 && count != item.last - item.first + 1) {
        refuse("recompute", fmt::format("has a part of the block of layers {} to {}", item.first, item.last),
               "recomputes whole blocks");
        return;
      }
      if (item.letter == 'm') continue;  // they recompute as decoder layers do
      const auto stage = std::ranges::find_if(pipeline_.stages, [&](const LayerRange& range) {
        return range.first <= item.first && item.last <= range.second;
      });
      blocks[static_cast<std::size_t>(stage - pipeline_.stages.begin())].push_back(count != 0);
    }
    std::size_t longest = 0;
    for (const auto& stage : blocks) {
      longest = std::max<std::size_t>(longest, static_cast<std::size_t>(std::ranges::count(stage, true)));
    }
    for (const auto& stage : blocks) {
      const auto first_kept = static_cast<std::size_t>(std::ranges::find(stage, false) - stage.begin());
      if (first_kept == std::min(longest, stage.size()) &&
          static_cast<std::size_t>(std::ranges::count(stage, true)) == first_kept)
        continue;
      refuse("recompute", "is of other blocks than the first of each stage, as many in each",
             "recomputes those, or all");
      return;
    }
    add("--recompute-method", "block");
    add("--recompute-num-layers", longest);
  }

  /// Operators that run again, where they are those of modules in every block that has them. Of experts as a whole
  /// Megatron-Core repeats the exchanges of tokens, too, which operators do not.
  void add_operators()
  {
    std::vector<std::string> modules;
    std::vector<BlockOperators> of_modules(workload_.recompute_operators.size());
    for (const auto& module : compute::recompute_module_names()) {
      const auto of_blocks = compute::operators_of_module(module, workload_.model);
      bool has_all = module != "moe";
      for (std::size_t block = 0; block < of_blocks.size(); ++block) {
        has_all = has_all && !(of_blocks[block] - workload_.recompute_operators[block]).any();
      }
      if (!has_all || std::ranges::none_of(of_blocks, &BlockOperators::any)) continue;
      modules.push_back(module);
      for (std::size_t block = 0; block < of_blocks.size(); ++block) of_modules[block] |= of_blocks[block];
    }
    if (of_modules != workload_.recompute_operators || !plan_.recompute.empty()) {
      refuse("recompute_operators", "are of the workload",
             fmt::format("recomputes whole blocks, or modules of all blocks that have them: {}",
                         fmt::join(compute::recompute_module_names(), ", ")));
      return;
    }
    add_recomputed(std::move(modules));
  }

  void add_recomputed(std::vector<std::string> modules)
  {
    add("--recompute-granularity", "selective");
    arguments_.push_back({"--recompute-modules", std::move(modules)});
  }

  void add_sums()
  {
    const std::size_t replicas = pipeline_.replicas * pipeline_.context;
    if (replicas == 1) return;
    const Sync& sync = plan_.sync;
    if (sync.sharded > Sharding::Optimizer) {
      refuse("sync.sharded", std::string(name_of(sync.sharded)),
             "divides at most the optimizer in pipelines of its own");
    }
    if (sync.summed == DType::Float16) refuse("sync.gradient_dtype", "fp16", "adds up gradients in float32 or bf16");
    if (sync.summed == DType::BFloat16) add("--grad-reduce-in-bf16");
    const bool is_divided = sync.sharded == Sharding::Optimizer;
    if (is_divided) add("--use-distributed-optimizer");
    // Parts of a device add up their gradients one after another, beside the backward passes of others.
    if (sync.bucket == one_bucket || plan_.stages.size() <= pipeline_.devices) return;
    add("--overlap-grad-reduce");
    constexpr double bytes_of_float32 = 4;
    if (sync.bucket > Bytes{}) add("--ddp-bucket-size", std::llround(sync.bucket.value / bytes_of_float32));
    if (is_divided && overlaps_gathers(plan_)) add("--overlap-param-gather");
  }

  std::string heading() const
  {
    return fmt::format(
        "# {} of Megatron-Core 0.19; rank i is on line i of hostfile: shards change first, then parts of\n"
        "# sequences, replicas, stages (--use-tp-pp-dp-mapping off).\n",
        counted(pipeline_.ranks.size(), "rank"));
  }

  std::string model_text() const
  {
    if (model_.unsaid.empty()) return shell_array("MODEL_ARGUMENTS", model_.arguments, {});
    return fmt::format("# {} has no arguments for {}; MODEL_ARGUMENTS are yours.\n", megatron_name,
                       on_one_line(fmt::to_string(fmt::join(model_.unsaid, "; "))));
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  UniformPipeline pipeline_;
  std::string layout_;
  MegatronModel model_;
  std::vector<Argument> arguments_;
  std::vector<std::string> faults_;
};

}  // namespace

Conversion to_megatron(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  return MegatronArguments(plan, workload, cluster).conversion();
}

}  // namespace isobar::cli
