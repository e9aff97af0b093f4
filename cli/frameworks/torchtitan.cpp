#include "cli/frameworks/conversion.hpp"
#include "cli/frameworks/model_items.hpp"
#include "cli/frameworks/shell_text.hpp"
#include "cli/frameworks/uniform_pipeline.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/orders/order_csv.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace isobar::cli {

namespace {

constexpr auto torchtitan_name = "torchtitan";

class TorchtitanArguments {
 public:
  TorchtitanArguments(const Plan& plan, const Workload& workload, const Cluster& cluster)
      : plan_(plan), workload_(workload), cluster_(cluster)
  {
  }

  Conversion conversion()
  {
    pipeline_ = uniform_pipeline(plan_, torchtitan_name, faults_);
    letters_ = letters_of_stages(workload_, pipeline_.stages, torchtitan_name, faults_);
    if (faults_.empty()) {
      add_pipeline();
      add_degrees();
      add_batches();
      add_recomputation();
    }
    if (!faults_.empty()) return {{}, std::move(faults_)};
    const std::vector<std::string> heading = {
        fmt::format("{} of torchtitan 0.3; rank i is on line i of hostfile.", counted(pipeline_.ranks.size(), "rank")),
        "Give --module and --config before these."};
    Conversion made{{{"arguments.sh", shell_array("PLAN_ARGUMENTS", arguments_, heading)},
                     {"hostfile", fmt::format("{}\n", fmt::join(hosts_of_ranks(pipeline_.ranks, cluster_), "\n"))}},
                    {}};
    if (!schedule_csv_.empty()) made.files.push_back({"schedule.csv", schedule_csv_});
    return made;
  }

 private:
  void refuse(const std::string& where, const std::string& what, const std::string& torchtitan_does)
  {
    faults_.push_back(fmt::format("{}: {}; {} {}", where, what, torchtitan_name, torchtitan_does));
  }

  template <typename Value>
  void add(const std::string& option, const Value& value)
  {
    arguments_.push_back({option, {fmt::to_string(value)}});
  }

  /// The modules of each stage, between commas.
  std::vector<std::string> modules()
  {
    std::vector<std::string> all;
    std::size_t block = 0;
    for (const auto& letters : letters_) {
      std::vector<std::string> names;
      for (const char letter : letters) {
        if (letter == 'm') {
          refuse("workload", "has blocks of multi-token prediction", "has no modules of them");
          return {};
        }
        if (letter == 'E') names.emplace_back("tok_embeddings");
        if (letter == 't') names.push_back(fmt::format("layers.{}", block++));
        if (letter == 'L') names.insert(names.end(), {"norm", "lm_head"});
      }
      all.push_back(fmt::format("{}", fmt::join(names, ",")));
    }
    return all;
  }

  void add_pipeline()
  {
    const Plan single = single_pipeline(plan_, pipeline_, torchtitan_name, faults_);
    add("--parallelism.pipeline-parallel-degree", pipeline_.devices);
    if (pipeline_.devices == 1) {
      if (!has_order_of(single, {})) {
        refuse("schedule", on_one_line(text_of(plan_.goal.schedule)),
               "takes one micro-batch after another without a pipeline");
      }
      return;
    }
    arguments_.push_back({"--parallelism.module-fqns-per-model-part", modules()});
    const auto shape = schedules::shape_of(single);
    const auto folds = [&](schedules::Folding folding) {
      for (std::size_t stage = 0; stage < shape.stages(); ++stage) {
        if (shape.rank_of_stage[stage] != schedules::rank_of_stage(folding, stage, shape.ranks())) return false;
      }
      return true;
    };
    const bool is_v = pipeline_.chunks == 2 && folds(schedules::Folding::V);
    if (!is_v && !folds(schedules::Folding::RoundRobin)) {
      refuse("stages", "lie on their devices neither in turn nor in a V", "has them so");
      return;
    }
    // torch's groups of Interleaved1F1B.
    const std::uint64_t rounds = std::max<std::uint64_t>(1, pipeline_.microbatches / pipeline_.devices);
    const ScheduleChoice interleaved = {"interleaved",
                                        {{"chunks", {pipeline_.chunks}}, {"group", {pipeline_.microbatches / rounds}}}};
    const auto& name = plan_.goal.schedule.name;
    std::string schedule;
    if (pipeline_.chunks == 1 && has_order_of(single, {})) schedule = "1F1B";
    if (pipeline_.chunks > 1 && pipeline_.microbatches % rounds == 0 && has_order_of(single, interleaved))
      schedule = "Interleaved1F1B";
    if (name == "zero-bubble-v") schedule = "ZBVZeroBubble";
    if (name == "dualpipe-v") schedule = "DualPipeV";
    if (schedule.empty()) {
      // The name says where stages lie, and the file the order.
      schedule = is_v ? "ZBVZeroBubble" : pipeline_.chunks == 1 ? "1F1B" : "Interleaved1F1B";
      schedule_csv_ = schedules::orders_to_csv(shape, schedules::orders_of(single));
      add("--parallelism.pipeline-parallel-schedule-csv", "schedule.csv");
    }
    add("--parallelism.pipeline-parallel-schedule", schedule);
    add("--parallelism.pipeline-parallel-microbatch-size", workload_.micro_batch);
  }

  void add_degrees()
  {
    const bool is_divided = plan_.sync.sharded >= Sharding::Gradients;
    const std::size_t sharded = is_divided ? pipeline_.replicas : 1;
    if (plan_.sync.sharded == Sharding::Optimizer && pipeline_.replicas * pipeline_.context > 1) {
      refuse("sync.sharded", "optimizer", "divides nothing, or gradients, or parameters");
    }
    add("--parallelism.data-parallel-replicate-degree", is_divided ? 1 : pipeline_.replicas);
    add("--parallelism.data-parallel-shard-degree", sharded);
    if (is_divided) {
      add("--parallelism.fsdp-reshard-after-forward", plan_.sync.sharded == Sharding::Parameters ? "always" : "never");
    }
    add("--parallelism.tensor-parallel-degree", pipeline_.shards);
    if (pipeline_.shards > 1 && !pipeline_.divides_sequences_among_shards) {
      arguments_.push_back({"--parallelism.no-enable-sequence-parallel", {}});
    }
    add("--parallelism.context-parallel-degree", pipeline_.context);
    if (pipeline_.context > 1 && plan_.context.exchange != ContextExchange::AllGather) {
      refuse("context.exchange", std::string(name_of(plan_.context.exchange)), "gathers keys and values (all-gather)");
    }
    if (!plan_.experts.divides()) return;
    if (!plan_.experts.are_whole && pipeline_.shards > 1) {
      refuse("experts", "shards have a part of each", "gives shards whole experts (experts.tensor: 1)");
    }
    const std::size_t parts = plan_.experts.parts(pipeline_.shards);
    if (sharded * pipeline_.context * pipeline_.shards % parts != 0) {
      refuse("experts.degree", fmt::format("{}", plan_.experts.degree),
             "divides experts among replicas that divide gradients or parameters");
    }
    add("--parallelism.expert-parallel-degree", parts);
  }

  void add_batches()
  {
    // Without a pipeline a step accumulates gradients over local batches.
    const bool has_pipeline = pipeline_.devices > 1;
    add("--training.local-batch-size", workload_.micro_batch * (has_pipeline ? pipeline_.microbatches : 1));
    add("--training.global-batch-size", workload_.micro_batch * pipeline_.microbatches * pipeline_.replicas);
    add("--training.seq-len", workload_.sequence);
    if (has_pipeline) arguments_.push_back({"--training.disable-cuda-graphs", {}});  // torchtitan requires it
  }

  void add_recomputation()
  {
    if (!workload_.recompute_operators.empty() ||
        (!plan_.recompute.empty() && !recomputes_all_blocks(plan_, workload_))) {
      refuse("recompute", "is of other layers than all blocks", "recomputes all blocks, or by rules of its own");
      return;
    }
    arguments_.push_back({plan_.recompute.empty() ? "activation-checkpoint:none" : "activation-checkpoint:full", {}});
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  UniformPipeline pipeline_;
  std::vector<std::string> letters_;
  std::vector<Argument> arguments_;
  std::string schedule_csv_;
  std::vector<std::string> faults_;
};

}  // namespace

Conversion to_torchtitan(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  return TorchtitanArguments(plan, workload, cluster).conversion();
}

}  // namespace isobar::cli
