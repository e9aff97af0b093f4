#pragma once

#include <cstdint>

/// Limits for the readers of workloads, beyond any model that has been built, so that a typo is a fault and not a day
/// of waiting. Within them, the parameters of a million layers stay below 2^64.
namespace isobar {

inline constexpr std::uint64_t most_layers = 1'000'000;
inline constexpr std::uint64_t most_encoders = (most_layers - 3) / 3;  ///< of bert, which has three layers for each
inline constexpr std::uint64_t most_blocks = most_layers - 2;          ///< of gpt and llama; half of it by operators
inline constexpr std::uint64_t most_moe_layers = 10'000;               ///< each has some 25 operators
inline constexpr std::uint64_t widest = std::uint64_t{1} << 20;
inline constexpr std::uint64_t widest_intermediate = 4 * widest;
inline constexpr std::uint64_t largest_micro_batch = std::uint64_t{1} << 20;
inline constexpr std::uint64_t longest_sequence = std::uint64_t{1} << 24;
inline constexpr std::uint64_t largest_vocabulary = std::uint64_t{1} << 24;
inline constexpr std::uint64_t most_parameters = 10'000'000'000'000;

}  // namespace isobar
