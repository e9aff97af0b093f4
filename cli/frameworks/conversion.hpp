#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// A file that a framework reads.
struct ConvertedFile {
  std::string name;
  std::string content;
};

/// A plan as a framework takes it.
struct Conversion {
  std::vector<ConvertedFile> files;
  std::vector<std::string> faults;  ///< what it cannot say, a line each; there are then no files
};

/// A plan with stages as arguments of Megatron-Core 0.19 and its ranks: `arguments.sh` and `hostfile`. The workload and
/// the cluster are the plan's.
///
/// Megatron-Core takes plans whose stages begin and end with whole blocks of a gpt, llama or decoder, whose devices
/// have equally many stages in turn, and whose devices work in the order of 1f1b or interleaved.
Conversion to_megatron(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The same as arguments of torchtitan 0.3: `arguments.sh`, `hostfile`, and where no schedule of torch has the plan's
/// order `schedule.csv`. Two stages of each device may also lie in a V.
Conversion to_torchtitan(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The same as configuration of DeepSpeed 0.19: `deepspeed.json`, `planned_pipeline.py` with a subclass of
/// PipelineModule that has the plan's stages, and `hostfile`. Bounds count the blocks of a gpt, llama or decoder, and
/// the layers of other workloads.
Conversion to_deepspeed(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The same for the runtime of torch.distributed.pipelining: `schedule.csv` and `stages.json` (docs/frameworks.md).
Conversion to_torch(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar::cli
