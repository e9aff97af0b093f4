#pragma once

#include "core/errors.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/run/run.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace isobar::exec {

class StageModel;

/// The error for a run whose training has diverged in a step.
InputError diverged(std::uint64_t step, const std::string& what);

/// Writes one stage's part of each checkpoint in the background. Rank 0 also prepares the folder and deletes old
/// checkpoints.
class StageCheckpoints {
 public:
  /// `run_id`: shared by ranks that are processes; "" for threads. `plan` and `options` must outlive it.
  /// @throws EnvironmentError when the folder cannot be written.
  StageCheckpoints(const Plan& plan, const RunOptions& options, std::string run_id, std::size_t rank);

  /// Call after each step. @throws the failure of an earlier write; InputError, after the first step, when this rank's
  /// folder is not the one that rank 0 writes to.
  void step_ended();
  /// Starts to write the model after `steps_done` steps. Waits first for the previous write, so that only one copy of
  /// the model is in memory.
  /// @throws InputError when a parameter is not finite; the failure of the previous write.
  void write(std::uint64_t steps_done, const StageModel& model);
  /// Waits for the last write. @throws its failure.
  void finish() { writer_.finish(); }

 private:
  std::filesystem::path run_id_file() const;
  void find_rank_zero() const;

  const Plan& plan_;
  const RunOptions& options_;
  std::string run_id_;
  std::size_t rank_;
  bool is_first_step_ = true;
  AsyncCheckpointWriter writer_;
};

}  // namespace isobar::exec
