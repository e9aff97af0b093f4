#pragma once

#include "cli/frameworks/uniform_pipeline.hpp"
#include "cli/inputs.hpp"
#include "core/model/sharding.hpp"
#include "core/order/order.hpp"
#include "core/order/schedule_choice.hpp"
#include "core/plan/plan.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::cli {

/// What a framework's own files say of a plan, before its devices are known.
struct ImportedPipeline {
  std::vector<LayerRange> stages;  ///< of the workload's layers, in the order of the chain
  std::size_t chunks = 1;          ///< stages of each device
  bool is_v = false;               ///< stages 0 to p - 1 lie on devices 0 to p - 1, and the others on p - 1 to 0
  std::size_t replicas = 1;        ///< that take sequences of their own
  std::size_t shards = 1;
  bool divides_sequences_among_shards = false;
  ContextParallelism context = {};
  ExpertParallelism experts = {};
  Sharding sharded = Sharding::None;
  ScheduleChoice schedule = {};
  std::vector<Order> orders = {};  ///< by rank of a pipeline, of schedule listed
  std::uint64_t microbatches = 0;  ///< of a step, of whole sequences
  std::vector<std::string> ranks;  ///< devices as UniformPipeline::ranks; empty: the platform's, in its order
};

/// The stages of a workload with these letters, as layout_letters has them. @throws InputError naming `place` for an
/// empty stage, another order of letters than the model's, or another number of some.
std::vector<LayerRange> stages_with_letters(const std::vector<std::string>& letters, const Workload& workload,
                                            const std::string& place);

/// The stages of a workload between bounds, 0 first, that count what training software places: the blocks of a gpt,
/// llama or decoder with embedding and head, or the layers of another workload. `text` is "0,5,9,14" or "[0, 5, 9,
/// 14]".
/// @throws InputError naming `place` for bounds that do not ascend, or do not end with the model.
std::vector<LayerRange> stages_with_bounds(std::string_view text, const Workload& workload, const std::string& place);

/// Gives a pipeline the orders of its ranks: those of a schedule without numbers, or with chunks alone, that has just
/// these, else as schedule listed.
void set_orders(std::vector<Order> orders, const schedules::PipelineShape& shape, ImportedPipeline& pipeline);

/// The pipeline of a file of arguments of torchtitan 0.3, such as to_torchtitan() writes, or a whole command; arguments
/// that say nothing of the plan do not count. Without module_fqns_per_model_part, stages are those that torchtitan
/// makes.
/// @throws InputError naming the file and the argument.
ImportedPipeline pipeline_of_torchtitan(const std::string& file, const Workload& workload);

/// The pipeline of a folder with the files of to_torch(). @throws InputError naming file, line and key of each fault.
ImportedPipeline pipeline_of_torch(const std::string& folder, const Workload& workload);

/// The plan of such a pipeline on a platform, with all claims; infeasible, with the reason, where it does not fit in
/// memory. `inputs` have the workload as the plan recomputes it. `place` is what the pipeline was read from.
/// @throws InputError naming `place` for a pipeline that does not fit the workload or the platform.
Plan plan_of_import(const ImportedPipeline& pipeline, Inputs& inputs, const std::string& place);

}  // namespace isobar::cli
