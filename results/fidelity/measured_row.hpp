#pragma once

#include "core/model/sharding.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::results {

/// What a measured row may be used for.
enum class RowRole : std::uint8_t {
  Calibration,  ///< constants may be fitted on it
  Development,  ///< reported, never fitted
  Gate,         ///< reported, never fitted; limits apply
  Derived,      ///< not a measurement: another model's output
  Failed,       ///< the run died; counts for feasibility alone
  Excluded      ///< in no figure, for the reason in its note
};

/// What a measured memory is the peak of, on the fullest device.
enum class MemoryKind : std::uint8_t {
  Allocated,  ///< tensors
  Reserved,   ///< what the framework's allocator took from the device
  Device      ///< all that is in use, with context and NCCL
};

/// Which activations a run recomputed.
enum class Recomputation : std::uint8_t {
  None,
  Selective,  ///< the attention core, unless it is fused
  Full,       ///< all but the inputs of blocks
  Planned,    ///< as the row's plan says
  Modules     ///< modules of Megatron-Core, which the row names
};

std::string_view name_of(RowRole role);             ///< "calibration", "development", …
std::string_view name_of(MemoryKind kind);          ///< "allocated", "reserved", "device"
std::string_view name_of(Recomputation recompute);  ///< "none", "selective", "full", "plan", "modules"

/// Why a row cannot be expressed as platform, workload and plan.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One published training run: a row of a file of schema isobar-fidelity/1 (docs/formats/fidelity.md). Names of files
/// are paths from the working folder. What the row does not know is none, or empty.
struct MeasuredRow {
  std::string file;
  int line = 0;
  std::string set;
  std::string name;  ///< unique in its file
  RowRole role = RowRole::Development;
  std::string group;  ///< rows of a group answer one question, and are ranked against each other
  std::string platform;
  std::vector<std::pair<std::string, std::string>> platform_overrides;  ///< key and value
  std::string workload;
  std::vector<std::pair<std::string, std::string>> overrides;
  std::string framework;
  std::size_t pipeline_degree = 1;
  std::vector<std::size_t> tensor_degrees = {1};  ///< one, or one a stage
  std::vector<std::size_t> data_degrees = {1};    ///< likewise
  std::size_t context_degree = 1;
  std::optional<ContextExchange> context_exchange = {};  ///< if it is known
  std::size_t expert_degree = 1;
  bool has_whole_experts = false;  ///< expert tensor parallelism of degree 1; otherwise shards divide each expert
  std::optional<std::size_t> virtual_stages = {};
  std::size_t zero_stage = 0;  ///< of ZeRO, 0 to 3
  bool sequence_parallel = false;
  std::uint64_t global_batch = 0;                 ///< samples of a step
  std::optional<std::uint64_t> micro_batch = {};  ///< samples
  std::string schedule;
  std::optional<Recomputation> recompute = {};
  std::vector<std::string> recompute_modules = {};  ///< core/compute/recompute_modules.hpp
  std::vector<double> blocks;  ///< of each stage, or of each chunk, decimals where a block is cut; empty: even
  std::string devices;         ///< "": in the order of the platform
  std::string plan;
  std::vector<std::string> profiles;
  std::optional<Seconds> measured = {};           ///< of a step
  std::optional<double> measured_tolerance = {};  ///< relative
  std::optional<Bytes> measured_memory = {};
  std::optional<MemoryKind> memory_kind = {};
  std::optional<Seconds> reference = {};  ///< another simulator's prediction
  std::optional<Bytes> reference_memory = {};
  std::string note;
};

/// Reads a file of measured rows. A row has a measured time or memory unless it is failed or excluded. An excluded row
/// needs no more than its set, name and role.
/// @throws InputError with the faults of the whole file, "file:line: column: what is there; what would be right".
std::vector<MeasuredRow> read_measured_rows(const std::filesystem::path& file);

}  // namespace isobar::results
