#pragma once

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// The sizes of device groups that Metis tries for a number of stages: powers of two, each at least half of
/// devices / stages rounded down, that sum to all devices. The sizes of a multiset are ordered in up to four blocks of
/// neighbours in size, in every order of these.
///
/// Multisets come by their largest size, the most equal ones first; at most `most` orders are returned, at least the
/// first. O(most x stages) time, and for a multiset up to 24 orders. Deterministic.
/// Source: Um et al., Metis: Fast Automatic Distributed Training on Heterogeneous GPUs, USENIX ATC 2024, whose code
/// merges groups into blocks in the same way (`max_permute_len` 4).
std::vector<std::vector<std::size_t>> group_sizes(std::size_t devices, std::size_t stages, std::size_t most);

}  // namespace isobar::allocators
