#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The outer updates of DiLoCo (Douillard et al., arXiv 2311.08105), on the CPU.
///
/// All functions work value by value, so that any split of the values, and any number of threads, gives the same bits,
/// on every machine. Spans of a call have equal lengths.
namespace isobar::exec {

/// Δ = φ - θ: how far a worker's steps have taken its parameters θ from the outer parameters φ.
void outer_gradient(std::span<const float> outer, std::span<const float> own, std::span<float> gradient,
                    std::size_t threads = 1);

/// The mean of workers' gradients: Σ w Δ / Σ w.
///
/// Summed in double in the order of the workers and rounded once, so that equal gradients have themselves as their
/// mean, to the last bit, for whole weights of a sum up to 2^29. A gradient of weight 0 is not read.
/// `weights`: of each gradient; finite, not negative, not all 0. `mean` may be one of the gradients.
void weighted_mean(std::span<const std::span<const float>> gradients, std::span<const double> weights,
                   std::span<float> mean, std::size_t threads = 1);

/// θ <- α θ + (1 - α) φ, where `kept` is α, the part that a worker keeps of its own parameters: 0 to below 1.
void mix(std::span<float> own, std::span<const float> outer, float kept, std::size_t threads = 1);

struct OuterRule {
  float learning_rate = 0.7F;  ///< η
  float momentum = 0.9F;       ///< μ
};

/// The outer parameters φ and their momentum v, and SGD with Nesterov's momentum as torch has it, without dampening:
/// v <- μ v + Δ; φ <- φ - η (Δ + μ v). In float32.
class OuterOptimizer {
 public:
  /// `velocity`: zeros at the begin of a run. `threads`: that an update may take.
  OuterOptimizer(std::vector<float> parameters, std::vector<float> velocity, const OuterRule& rule,
                 std::size_t threads = 1);

  /// Updates the parameters from `first` on, as many as the gradient has.
  void update(std::size_t first, std::span<const float> gradient);

  std::span<const float> parameters() const { return parameters_; }
  std::span<const float> velocity() const { return velocity_; }
  /// CRC-32C of the parameters as they lie in memory: equal on all workers, or one has drifted apart.
  std::uint32_t checksum() const;

 private:
  std::vector<float> parameters_;
  std::vector<float> velocity_;
  OuterRule rule_;
  std::size_t threads_;
};

}  // namespace isobar::exec
