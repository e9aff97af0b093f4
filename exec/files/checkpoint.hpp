#pragma once

#include "exec/files/checkpoint_manifest.hpp"
#include "exec/files/safetensors.hpp"
#include "exec/files/tensor_part.hpp"
#include "exec/files/tensor_source.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Checkpoints of a run (docs/checkpoints.md). `FOLDER/step-00000010/` holds, for each stage, a safetensors file and
/// then a part of the manifest; for each replica of a stage, if those divide its optimizer. Ranks write into one folder
/// without communicating; a checkpoint is complete when all parts exist and agree.
namespace isobar::exec {

/// Name of a parameter in checkpoints, independent of the split: "layers.3.query.weight". Optimizer state of the
/// parameter adds a suffix, such as ":first_moment".
std::string checkpoint_name(std::size_t layer, std::string_view parameter);

/// The state that one stage saves, or one of the replicas and shards that divide it. Of a tensor that they divide, each
/// has a slice, under the name that part_name gives it.
struct StageSnapshot {
  std::uint64_t step = 0;  ///< number of steps done
  PartName part = {};
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  std::string run = "{}";  ///< JSON object that identifies the run (seed, hash of the workload, …), equal in all parts
  std::vector<StoredTensor> tensors;
};

/// A complete checkpoint, open for reading: the tensors of all parts by name. Slices are put together.
class Checkpoint final : public TensorSource {
 public:
  std::string where() const override;
  std::vector<std::string> names() const override;
  const TensorFacts* find(const std::string& name) const override;
  /// Reads a tensor and compares its CRC-32C with the manifest's.
  void read(const std::string& name, std::span<std::byte> into) const override;
  using TensorSource::read;

  std::uint64_t step() const { return step_; }
  std::size_t stages() const { return stages_; }
  /// The names of its files.
  const std::set<std::string>& files() const { return files_; }
  std::size_t layers() const;
  /// The JSON object that identifies the run.
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
  struct Slice {
    std::string name;  // of a stored tensor, or of one that is divided again
    TensorPart part;
  };
  /// A tensor of which the parts hold slices, by their first elements.
  struct DividedTensor {
    TensorFacts facts;
    std::map<std::uint64_t, Slice> slices;
  };
  Checkpoint(std::filesystem::path folder, std::uint64_t step);

  void find_divided_tensors();
  void add_slice(const std::string& name, const NamedPart& slice);
  void require_all_slices(const DividedTensor& tensor) const;
  void read_stored(const std::string& name, std::span<std::byte> into) const;

  std::filesystem::path folder_;
  std::uint64_t step_;
  std::size_t stages_ = 0;
  std::string run_;
  std::vector<Part> parts_;
  std::map<std::string, std::size_t> part_of_;  // by the names in their files
  std::map<std::string, DividedTensor> divided_;
  std::set<std::string> files_;
};

/// A folder of checkpoints.
class CheckpointStore {
 public:
  /// The folder need not exist until something is written.
  explicit CheckpointStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Creates the folder, and a file in it that it removes at once, so that a run that cannot save does not train.
  /// @throws EnvironmentError when the system refuses either.
  void require_writable() const;

  /// Writes one part durably, data before manifest. Removes manifest parts that an earlier run wrote for this step with
  /// another number of stages, or for this stage with another number of shards. @throws EnvironmentError naming file
  /// and bytes when a write fails.
  void write(const StageSnapshot& snapshot) const;

  /// The result of a search for the newest checkpoint.
  struct Newest {
    std::optional<std::uint64_t> step;
    std::vector<std::string> skipped;  ///< for each later one: its folder and what is missing or wrong
    bool damaged = false;              ///< whether one of the skipped was complete once
  };
  /// How thoroughly a checkpoint is checked.
  enum class Check {
    Files,    ///< parts agree, sizes and headers of files are valid; no elements are read
    Elements  ///< also the CRC-32C of all bytes; takes as long as reading them
  };
  /// The latest step whose checkpoint is complete and passes the check; none when the folder does not exist.
  Newest newest_complete(Check check = Check::Files) const;

  /// Opens a step's checkpoint. @throws InputError naming the file and the fault when it is not complete.
  Checkpoint open(std::uint64_t step) const;
  /// Steps that have a folder, ascending.
  std::vector<std::uint64_t> steps() const;

  /// Keeps the latest `count` ≥ 1 complete checkpoints of the run that wrote the newest complete one. Removes its older
  /// ones and what interrupted writes left before that. Keeps later steps, which other ranks may be writing, and other
  /// runs' checkpoints. Call it on one rank only.
  void keep_last(std::size_t count) const;

  /// Clears the steps after `step`: removes unfinished checkpoints (only our files), and renames those that were
  /// complete once to "step-00000030.damaged". Call it on one rank only, before a run that resumes from `step` writes
  /// anything: then no checkpoint has parts of two runs.
  void clear_later_than(std::uint64_t step) const;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path folder_of(std::uint64_t step) const;

 private:
  std::filesystem::path folder_;
};

/// Writes snapshots on a background thread, one at a time.
class AsyncCheckpointWriter {
 public:
  /// `keep`: number of complete checkpoints to keep after each write; to be set on one rank only.
  explicit AsyncCheckpointWriter(CheckpointStore store, std::optional<std::size_t> keep = std::nullopt)
      : store_(std::move(store)), keep_(keep)
  {
  }

  /// Starts writing. Waits first for the previous snapshot, if it is still being written; call finish() before making a
  /// snapshot to hold only one in memory. @throws what the previous write threw.
  void write(StageSnapshot snapshot);
  /// Rethrows the failure of the last write if it has ended; never waits.
  void throw_if_failed();
  /// Waits for the last write. @throws what it threw.
  void finish();

 private:
  CheckpointStore store_;
  std::optional<std::size_t> keep_;
  std::future<void> pending_;  // its destructor waits for the thread
};

}  // namespace isobar::exec
