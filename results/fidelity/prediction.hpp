#pragma once

#include "core/plan/step_interval.hpp"
#include "core/units.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// Where the time of a predicted step goes, in the stage that computes most. The parts add up to the step.
struct RowParts {
  Seconds products;
  Seconds attention;
  Seconds memory_bound;  ///< operators that the memory's bandwidth limits
  Seconds launch;        ///< what the host adds where it is slower than the device
  Seconds tensor;        ///< exposed collectives of tensor parallelism
  Seconds pipeline;      ///< exposed transfers between stages
  Seconds data;          ///< exposed collectives of data parallelism
  Seconds bubble;        ///< idle
  Seconds update;        ///< the optimizer's step
};

/// A part by its name for people and its key in files.
struct RowPart {
  const char* name;
  const char* key;
  Seconds RowParts::*time;
};
inline constexpr std::array<RowPart, 9> row_parts = {{{"products", "products_s", &RowParts::products},
                                                      {"attention", "attention_s", &RowParts::attention},
                                                      {"memory-bound", "memory_bound_s", &RowParts::memory_bound},
                                                      {"launches", "launch_s", &RowParts::launch},
                                                      {"tensor parallelism", "tensor_s", &RowParts::tensor},
                                                      {"pipeline transfers", "pipeline_s", &RowParts::pipeline},
                                                      {"data parallelism", "data_s", &RowParts::data},
                                                      {"bubble", "bubble_s", &RowParts::bubble},
                                                      {"update", "update_s", &RowParts::update}}};

/// What the models predict of a measured row.
struct RowPrediction {
  std::optional<Seconds> step;                ///< none: unsupported
  std::string unsupported;                    ///< why there is no step
  std::optional<StepInterval> interval = {};  ///< where the step lies in 80 % of all cases
  double exposed = 0;                         ///< part of the step: neither computation nor a wait for other stages'
  bool spans_nodes = false;                   ///< the plan's devices are in several nodes
  std::optional<Bytes> memory;                ///< of the fullest device, of the kind that the row measured
  RowParts parts;
  /// The step if every device worked at its peak rate: the model's operations, recomputation included, with the bubble.
  std::optional<Seconds> at_peak;
  bool folded = false;             ///< equal replicas and shards were played once
  bool fits = true;                ///< into the memory of the devices
  std::vector<std::string> notes;  ///< "subject: what", such as the machine, a constant and its source
  std::string device;              ///< the types of its devices, which a constant rate is fitted for
};

/// As text that passes from a child process.
std::string prediction_to_json(const RowPrediction& prediction);
/// Parses what `prediction_to_json` wrote; every number is the same.
RowPrediction prediction_from_json(const std::string& json);

}  // namespace isobar::results
