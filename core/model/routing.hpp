#pragma once

#include "core/model/workload.hpp"
#include "core/spmd/moe_sizes.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace isobar {

/// How tokens come to the experts of a workload; none without experts.
std::optional<spmd::Routing> routing_of(const Workload& workload);

/// Why tokens cannot come to the experts of a workload in this way, in micro-batches of that many samples; none if they
/// can.
std::optional<std::string> fault_of_routing(const Workload& workload, const spmd::Routing& routing,
                                            std::uint64_t micro_batch);

/// The workload that the same generator makes if tokens come to their experts in another way, with `micro_batch`
/// samples in a micro-batch. The routing has no fault. Otherwise as with_micro_batch.
Workload with_routing(const Workload& workload, const spmd::Routing& routing, std::uint64_t micro_batch);

/// Which tokens an expert takes: "640 slots for 32 samples", "all tokens, by index".
std::string text_of(const spmd::Routing& routing, const Workload& workload);

}  // namespace isobar
