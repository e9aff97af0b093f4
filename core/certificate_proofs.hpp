#pragma once

#include "core/certificate.hpp"
#include "core/cluster.hpp"
#include "core/plan.hpp"
#include "core/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

/// The rooms of the certificate checker: what they share, and one function per kind. Nothing else includes this.
namespace isobar::proofs {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Comparisons lean to the side that keeps placements, so that rounding never proves too much.
constexpr double rounding = 1e-12;

/// What a placement's memory may exceed a device's by, as the plan checker allows.
constexpr double memory_tolerance = 1e-9;

/// A chain of layers on a cluster, by sums of its own from the layers and the cluster. Cut k lies before layer k.
struct Chain {
  Chain(const Workload& chain, const Cluster& devices, const Goal& asked);

  std::size_t layers = 0;
  std::size_t devices = 0;
  Goal goal;
  bool is_sky = false;                  ///< memory is Sky's estimator
  std::vector<double> work;             ///< FLOP, forward and backward, of the layers before each cut
  std::vector<double> parameter_bytes;  ///< of the layers before each cut
  std::vector<double> activations;      ///< likewise, of one micro-batch
  std::vector<double> sky_memory;       ///< likewise
  std::vector<double> output;           ///< bytes over each cut, forward
  std::vector<double> gradient;         ///< and back
  std::vector<double> speed;            ///< of each device
  std::vector<double> memory;           ///< of each device
  std::vector<double> input_s;          ///< what each device waits for its input; 0 where it is local
  const Cluster* cluster = nullptr;

  double compute_s(std::size_t device, std::size_t first_cut, std::size_t end_cut) const
  {
    return (work[end_cut] - work[first_cut]) / speed[device];
  }
  /// Bytes that the layers between two cuts need with `held` micro-batches in flight.
  double need(std::size_t first_cut, std::size_t end_cut, std::uint64_t held) const;
  /// s_i.
  double cost(double compute, double send) const;
  std::uint64_t held_by(std::size_t stages_after) const;
  /// The objective is alpha x largest + beta x sum.
  double alpha() const;
  double beta() const;
};

/// The bound for layers that may be cut anywhere; infinite where all memory together is too small.
double fractional_bound(const Chain& chain);

}  // namespace isobar::proofs
