#pragma once

#include "core/errors.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/run/run.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace isobar::exec {

class StageModel;

/// The error for a run whose training has diverged in a step.
InputError diverged(std::uint64_t step, const std::string& what);

/// Writes the parts of a rank's stages of each checkpoint in the background. Of a stage with several replicas the
/// shards of the first do, or of each one if they divide its optimizer. Rank 0 also prepares the folder and deletes old
/// checkpoints.
class StageCheckpoints {
 public:
  /// `run_id`: shared by ranks that are processes; "" for threads. `plan` and `options` must outlive it.
  /// @throws EnvironmentError when the folder cannot be written.
  StageCheckpoints(const Plan& plan, const RunOptions& options, std::string run_id, std::size_t rank);

  /// Call after each step. @throws the failure of an earlier write; InputError, after the first step, when this rank's
  /// folder is not the one that rank 0 writes to.
  void step_ended();
  /// Begins the checkpoint after `steps_done` steps. Waits for the writes of the previous one, so that only one copy of
  /// the rank's stages is in memory. @throws the failure of the previous checkpoint.
  void begin(std::uint64_t steps_done);
  /// Whether the rank writes a part of the stage.
  bool writes(std::size_t stage) const { return writers_.contains(stage); }
  /// Starts to write a stage for the checkpoint that has begun. @throws InputError when a parameter is not finite.
  void write(std::size_t stage, const StageModel& model);
  /// Waits for the last checkpoint. @throws its failure.
  void finish();

 private:
  std::filesystem::path run_id_file() const;
  void find_rank_zero() const;

  const Plan& plan_;
  const RunOptions& options_;
  std::string run_id_;
  std::size_t rank_;
  bool is_first_step_ = true;
  std::uint64_t steps_done_ = 0;
  std::map<std::size_t, PartName> part_of_;               // of this rank, by stage that it writes
  std::map<std::size_t, AsyncCheckpointWriter> writers_;  // likewise
};

}  // namespace isobar::exec
