#pragma once

#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "core/program/residence.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/place.hpp"
#include "exec/device/shared_disk.hpp"
#include "exec/device/stream.hpp"
#include "exec/files/scratch_file.hpp"
#include "exec/rank/mailbox.hpp"
#include "exec/rank/pass_places.hpp"
#include "exec/rank/rank_stages.hpp"
#include "exec/stage/stage_model.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace isobar::exec {

/// Counts what a rank holds on its device, and of the machine that the device is in.
struct TierMeters {
  MemoryMeter& device;
  MemoryMeter& host;
  MemoryMeter& disk;
};

/// Places that parts take in turns. Thread-safe.
class PlacePool {
 public:
  void add(std::unique_ptr<Place> place);
  /// A place that is free, as the waits of a program have seen to.
  const Place* take();
  void give_back(const Place* place);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<const Place*> free_;
};

/// A rank's part of what passes between its device and the machine that the device is in: copies, updates by the
/// machine's processor and accesses of its disk. Each lane calls `run` on its own thread, after everything that the
/// instruction waits for.
class RankMachine {
 public:
  struct Options {
    std::string device;
    std::filesystem::path scratch;  ///< folder on the disk for optimizer states; "": that for temporary files
    bool needs_facts = false;       ///< whether no update may begin before all gradients are known
    std::optional<EmulatedMachine> emulated;
    /// For tests: the seed of random delays of all instructions; and memory that is free holds NaN.
    std::optional<std::uint64_t> disturbed;
  };

  /// Makes the places, after the models of the stages, and reserves the disk. The references must outlive it.
  /// @throws an OutOfMemory failure; EnvironmentError as ScratchFile does.
  RankMachine(const Program& program, std::size_t rank, const RankStages& stages, const TierMeters& meters,
              Options options);

  /// Continues with another program of the same plan, between steps.
  void switch_to(const Program& program);

  using Facts = std::function<GradientFacts(std::uint64_t step)>;  ///< of all gradients of a step
  /// Executes an instruction of a lane of the machine on the lane's stream, which is that of the thread.
  void run(std::uint64_t step, std::uint64_t position, const Instruction& instruction, Stream& stream,
           const Facts& facts);

  /// Prepares the model for a pass, and what follows it, on the compute lane.
  void before_pass(std::uint64_t position, const Instruction& pass, Stream& stream);
  void after_pass(std::uint64_t step, std::uint64_t position, const Instruction& pass, Stream& stream,
                  bool is_training);

  /// Runs `work`, which may store or restore the model of a stage, with all that belongs to it in memory, while all
  /// lanes rest.
  void with_state(std::uint32_t stage, const std::function<void()>& work);

 private:
  /// A stage.
  struct Part {
    StageModel* model = nullptr;
    Residence residence;
    bool has_replicas = false;
    std::size_t gradient_extent = 0;
    std::size_t state_extent = 0;
    const Place* gradients = nullptr;                // on the device
    std::shared_ptr<PlacePool> waiting_places = {};  // for gradients on the host
    const Place* waiting = nullptr;                  // the gradients of a step that wait for their update
    const Place* staged = nullptr;                   // the optimizer's state between its disk and the update
    std::uint64_t offset = 0;                        // of the state on the disk
  };

  void make_device_places(const TierMeters& meters);
  void make_host_places(const TierMeters& meters);
  void load(const Instruction& instruction, Stream& stream);
  void store(const Instruction& instruction, Stream& stream);
  void update(std::uint64_t step, Part& part, const Facts& facts);
  void read(Part& part);
  void write(Part& part);
  void read_state(const Part& part, const Place& place);
  void write_state(const Part& part, const Place& place);
  void with_disk(Part& part, const std::function<void()>& work);
  std::unique_ptr<SharedDisk::Access> emulated_access(const Instruction& instruction, Seconds begin) const;
  void pace(Seconds begin, const Instruction& instruction, SharedDisk::Access* access) const;
  void delay(std::uint64_t step, std::uint64_t position, const Instruction& instruction, std::uint64_t which) const;
  /// Marks a place that nothing uses any more.
  void leave(const Place& place) const;

  std::size_t rank_;
  const RankStages& stages_;
  Options options_;
  PassPlaces passes_;
  std::map<std::uint32_t, Part> parts_;  // by stage
  std::vector<std::unique_ptr<Place>> parameter_places_;
  std::map<std::size_t, std::unique_ptr<Place>> gradient_places_;
  std::vector<std::unique_ptr<Place>> kept_gradients_;  // of stages from which none leave
  PlacePool staging_;
  std::optional<ScratchFile> disk_;  // none without states there
  MemoryMeter& host_meter_;
  std::atomic<bool> is_computing_ = false;  // on the device
  Mailbox leaving_;                         // activations on the device
  Mailbox kept_;                            // on the host
  Mailbox returned_;                        // on the device again
};

}  // namespace isobar::exec
