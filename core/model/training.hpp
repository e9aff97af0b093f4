#pragma once

#include <cstdint>
#include <optional>

namespace isobar {

class MappingReader;
enum class Optimizer;

/// How the learning rate falls once it has risen.
enum class RateDecay { None, Linear, Cosine };

/// How a model is trained. Only the executor uses it; placement does not depend on it.
struct Training {
  double learning_rate = 0.01;  ///< at its highest
  std::uint64_t warmup_steps = 0;
  RateDecay decay = RateDecay::None;
  std::uint64_t decay_steps = 0;    ///< the step at which the decay ends, counted from step 0; above `warmup_steps`
  double min_learning_rate = 0;     ///< at the end of the decay
  double beta1 = 0.9;               ///< adam and adamw; Kingma and Ba, Adam, 2015, as the next two
  double beta2 = 0.999;             ///< likewise
  double epsilon = 1e-8;            ///< likewise
  double momentum = 0.9;            ///< of the optimizer of that name
  double weight_decay = 0;          ///< adamw: decoupled from the gradient; other optimizers: added to it
  double dropout = 0;               ///< of bert and gpt: the probability, below 1
  std::optional<double> clip_norm;  ///< largest norm of the gradients of all stages together; none: not clipped
};

/// The learning rate of the update by the gradients of a step, counted from 0. It rises in a straight line from 0 at
/// step 0 to `learning_rate` at `warmup_steps`, then falls to `min_learning_rate` at `decay_steps`, and stays there.
/// As transformers' get_constant_, get_linear_ and get_cosine_with_min_lr_schedule_with_warmup.
double learning_rate_at(const Training& training, std::uint64_t step);

/// Reads the keys of a workload file. Adds faults to the reader's list.
Training read_training(MappingReader& model, Optimizer optimizer, bool has_dropout);

}  // namespace isobar
