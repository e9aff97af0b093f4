#include "exec/run/stage_checkpoints.hpp"

#include "core/base/clock.hpp"
#include "core/base/files.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/stage/stage_model.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <chrono>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::exec {

InputError diverged(std::uint64_t step, const std::string& what)
{
  return {fmt::format("step {}", step), what + "; training has diverged; try a smaller learning_rate or a clip_norm"};
}

StageCheckpoints::StageCheckpoints(const Plan& plan, const RunOptions& options, std::string run_id, std::size_t rank)
    : plan_(plan), options_(options), run_id_(std::move(run_id)), rank_(rank)
{
  std::vector<std::size_t> stages;
  for (const auto& placed : shards_of_rank(plan, rank)) {
    const std::size_t shards = plan.stages[placed.stage].replicas[placed.replica].shards.size();
    const bool is_divided = plan.sync.sharded != Sharding::None;
    const std::size_t writers =
        is_divided ? plan.stages[placed.stage].replicas.size() : plan.experts.degree;  // replicas that write
    if (placed.replica >= writers) continue;
    stages.push_back(placed.stage);
    part_of_[placed.stage] = {.stage = placed.stage,
                              .stages = plan.stages.size(),
                              .shard = placed.replica * shards + placed.shard,
                              .shards = writers * shards};
  }
  // The last stage of rank 0 deletes old checkpoints, after the writes of its other stages have begun.
  for (const std::size_t stage : stages) {
    const bool deletes = rank == 0 && stage == stages.back();
    writers_.emplace(std::piecewise_construct, std::forward_as_tuple(stage),
                     std::forward_as_tuple(CheckpointStore(options.checkpoints.folder),
                                           deletes ? std::optional(options.checkpoints.keep) : std::nullopt));
  }
  // All ranks are present, and none of them ends a step before rank 0 has begun it.
  const auto& folder = options.checkpoints.folder;
  if (rank != 0 || folder.empty()) return;
  const CheckpointStore store(folder);
  store.require_writable();
  store.clear_later_than(options.first_step);
  if (!run_id_.empty()) write_file_atomically(run_id_file(), run_id_);
}

void StageCheckpoints::step_ended()
{
  for (auto& [stage, writer] : writers_) writer.throw_if_failed();
  if (!std::exchange(is_first_step_, false) || rank_ == 0 || writers_.empty()) return;
  if (!run_id_.empty() && !options_.checkpoints.folder.empty()) find_rank_zero();
}

void StageCheckpoints::begin(std::uint64_t steps_done)
{
  finish();
  steps_done_ = steps_done;
}

void StageCheckpoints::write(std::size_t stage, const StageModel& model)
{
  if (const auto name = model.not_finite(); !name.empty()) throw diverged(steps_done_ - 1, name + " is not finite");
  StageSnapshot snapshot;
  snapshot.step = steps_done_;
  snapshot.part = part_of_.at(stage);
  snapshot.first_layer = plan_.stages[stage].first_layer;
  snapshot.last_layer = plan_.stages[stage].last_layer;
  snapshot.run = options_.checkpoints.run;
  snapshot.tensors = model.state();
  writers_.at(stage).write(std::move(snapshot));
}

void StageCheckpoints::finish()
{
  for (auto& [stage, writer] : writers_) writer.finish();
}

/// Where rank 0 writes the id of the run that uses the folder.
std::filesystem::path StageCheckpoints::run_id_file() const
{
  return std::filesystem::path(options_.checkpoints.folder) / ".isobar-run";
}

/// Waits for rank 0's file: parts in different folders, though of the same name, never make a checkpoint.
void StageCheckpoints::find_rank_zero() const
{
  constexpr Seconds longest(10);  // a network file system may show the file late
  constexpr std::chrono::milliseconds pause(100);
  const auto file = run_id_file();
  for (const Seconds begin = steady_time(); !std::filesystem::exists(file) || read_file(file) != run_id_;) {
    if (steady_time() - begin > longest) {
      throw InputError(options_.checkpoints.folder,
                       "rank 0 writes its checkpoints to another folder; name one that all ranks share");
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace isobar::exec
