#pragma once

#include "allocators/allocator.hpp"

/// Published systems that train on one device and its machine, on our engine: with our checker, player and simulator,
/// and with what was measured of them where a platform has it (Cluster::systems). Each proposes one plan for each kind
/// of device that has a machine. @throws InputError as propose_windows does.
namespace isobar::allocators {

/// Everything on one device, as without a machine. Proposes a plan for each kind of device, whether it has a machine.
Proposals propose_resident(const HybridProblem& problem);
/// One layer at a time on the device, copied in and back for each pass; all gradients leave at the end.
Proposals propose_l2l(const HybridProblem& problem);
/// Parameters on the device; gradients leave after each backward, and the machine updates after the last.
Proposals propose_zero_offload(const HybridProblem& problem);
/// Parameters and gradients on the host too, one layer at a time. Where the host's memory is too small, the optimizer's
/// states of all layers are on its disk, if it has one.
Proposals propose_zero_infinity(const HybridProblem& problem);
/// A window of layers (SearchLimits::window; none: as its authors choose it) stays on the device and is updated there,
/// as many others pass. Parameters return after each pass and a gradient keeps its place until the update, as in the
/// published artifact.
Proposals propose_published_stronghold(const HybridProblem& problem);
/// The same window without the copies that nothing needs.
Proposals propose_stronghold(const HybridProblem& problem);

inline constexpr Allocator resident_allocator = {
    .name = "resident",
    .problem = "all layers on one device",
    .guarantee = "the fastest device that holds them",
    .cost = "O(layers x devices)",
    .source = "Shoeybi et al., Megatron-LM, 2019, on one device",
    .propose = propose_resident,
    .uses_machines = true,
};
inline constexpr Allocator l2l_allocator = {
    .name = "l2l",
    .problem = "one device and its machine, one layer at a time",
    .guarantee = "none",
    .cost = "O(layers)",
    .source = "Pudipeddi et al., Training Large Neural Networks with Constant Memory (L2L), 2020",
    .propose = propose_l2l,
    .uses_machines = true,
};
inline constexpr Allocator zero_offload_allocator = {
    .name = "zero-offload",
    .problem = "one device and its machine, which has gradients and optimizer",
    .guarantee = "none",
    .cost = "O(layers)",
    .source = "Ren et al., ZeRO-Offload, USENIX ATC 2021",
    .propose = propose_zero_offload,
    .uses_machines = true,
};
inline constexpr Allocator zero_infinity_allocator = {
    .name = "zero-infinity",
    .problem = "one device and its machine, which has parameters, gradients and optimizer",
    .guarantee = "none",
    .cost = "O(layers)",
    .source = "Rajbhandari et al., ZeRO-Infinity, SC 2021",
    .propose = propose_zero_infinity,
    .uses_machines = true,
};
inline constexpr Allocator published_stronghold_allocator = {
    .name = "stronghold-published",
    .problem = "one device and its machine: a window of layers, with all copies of the published artifact",
    .guarantee = "none",
    .cost = "O(layers)",
    .source = "Sun et al., STRONGHOLD, SC 2022; artifact strongh2/sc22-ae at f184275",
    .propose = propose_published_stronghold,
    .uses_machines = true,
    .takes_window = true,
};
inline constexpr Allocator stronghold_allocator = {
    .name = "stronghold",
    .problem = "one device and its machine: a window of layers, with the copies that are needed",
    .guarantee = "none; the window is the published choice",
    .cost = "O(layers)",
    .source = "Sun et al., STRONGHOLD, SC 2022",
    .propose = propose_stronghold,
    .uses_machines = true,
    .takes_window = true,
};

}  // namespace isobar::allocators
