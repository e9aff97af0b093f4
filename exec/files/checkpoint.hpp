#pragma once

#include "exec/files/safetensors.hpp"
#include "exec/files/tensor_source.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Checkpoints of a run (docs/checkpoints.md): `FOLDER/step-00000010/` holds of each stage a safetensors file and,
/// written after it, a part of the manifest. Ranks write into one folder without talking to each other; a checkpoint is
/// complete when the parts of all stages are there and agree.
namespace isobar::exec {

/// What checkpoints call a parameter, whatever the split: "layers.3.query.weight". What belongs to it (an optimizer's
/// state) may add an ending of its own, such as ":first_moment".
std::string checkpoint_name(std::size_t layer, std::string_view parameter);

/// What one stage saves.
struct StageSnapshot {
  std::uint64_t step = 0;  ///< steps done
  std::size_t stage = 0;
  std::size_t stages = 1;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  std::string run = "{}";  ///< a JSON object of what makes the run (seed, hash of the workload, …), equal on all stages
  std::vector<StoredTensor> tensors;
};

/// A complete checkpoint, open for reading: all tensors by name, whatever stages wrote them.
class Checkpoint final : public TensorSource {
 public:
  std::string where() const override;
  std::vector<std::string> names() const override;
  const TensorFacts* find(const std::string& name) const override;
  /// Compares the tensor's CRC-32C with the manifest's.
  void read(const std::string& name, std::span<std::byte> into) const override;
  using TensorSource::read;

  std::uint64_t step() const { return step_; }
  std::size_t stages() const { return parts_.size(); }
  std::size_t layers() const;
  /// The JSON object that the run gave.
  const std::string& run() const { return run_; }
  /// Reads all files and compares their CRC-32C with the manifest's. @throws InputError naming the first that differs.
  void verify() const;

 private:
  friend class CheckpointStore;
  struct Part {
    SafetensorsFile file;
    std::filesystem::path path;
    std::uint32_t crc;
    std::size_t last_layer;
    std::map<std::string, std::uint32_t> tensor_crc;
  };
  Checkpoint(std::filesystem::path folder, std::uint64_t step);

  std::filesystem::path folder_;
  std::uint64_t step_;
  std::string run_;
  std::vector<Part> parts_;
  std::map<std::string, std::size_t> part_of_;
};

/// A folder of checkpoints.
class CheckpointStore {
 public:
  /// The folder need not be there until something is written.
  explicit CheckpointStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Makes the folder, and a file in it that goes again, so that what cannot be written is not trained.
  /// @throws EnvironmentError when the disk refuses.
  void require_writable() const;

  /// Writes one stage's part, durably, data first; what an earlier run left of this step in another number of stages
  /// counts no longer. @throws EnvironmentError naming file and bytes when the disk refuses.
  void write(const StageSnapshot& snapshot) const;

  struct Newest {
    std::optional<std::uint64_t> step;
    std::vector<std::string> skipped;  ///< of each later one: its folder, and what it lacks or what is wrong
    bool damaged = false;              ///< one of these was complete once
  };
  /// How much of a checkpoint is looked at before it counts.
  enum class Check {
    Files,    ///< parts agree, files have their sizes and sound headers; no elements are read
    Elements  ///< all bytes too: as long as the disk takes to read them
  };
  /// The latest step whose checkpoint is complete and passes the check. No folder is no checkpoint.
  Newest newest_complete(Check check = Check::Files) const;

  /// @throws InputError when the step has no complete checkpoint, naming the file and what is wrong.
  Checkpoint open(std::uint64_t step) const;
  /// Steps of which there is anything, ascending.
  std::vector<std::uint64_t> steps() const;

  /// Removes all but the latest `count` ≥ 1 complete checkpoints of the run that wrote the newest complete one, and
  /// what interrupted writes left before that. What is later is left alone, since others may be writing it, and so is
  /// what another run wrote. For one rank.
  void keep_last(std::size_t count) const;

  /// Clears away what is later than `step`: removes what a run left unfinished, but nothing that is not ours, and calls
  /// "step-00000030.damaged" what was complete once. For one rank, before a run that goes on from `step` writes
  /// anything, so that no two runs' parts meet in one checkpoint.
  void clear_later_than(std::uint64_t step) const;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path folder_of(std::uint64_t step) const;

 private:
  std::filesystem::path folder_;
};

/// Writes snapshots on a thread of its own, one at a time.
class AsyncCheckpointWriter {
 public:
  /// `keep`: how many complete checkpoints stay after each write; for one rank, none for the others.
  explicit AsyncCheckpointWriter(CheckpointStore store, std::optional<std::size_t> keep = std::nullopt)
      : store_(std::move(store)), keep_(keep)
  {
  }

  /// Returns at once, unless the snapshot before is still being written: then when that is done. Calling finish()
  /// before the snapshot is made keeps one in memory instead of two. @throws what the write before threw.
  void write(StageSnapshot snapshot);
  /// Does not wait. @throws what the last write threw, if it has ended so.
  void throw_if_failed();
  /// Waits for the last write. @throws what it threw.
  void finish();

 private:
  CheckpointStore store_;
  std::optional<std::size_t> keep_;
  std::future<void> pending_;  // waits for its thread when it goes
};

}  // namespace isobar::exec
