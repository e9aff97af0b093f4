#include "core/model/training.hpp"

#include "core/model/workload.hpp"
#include "core/names.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace isobar {

namespace {

constexpr NameTable<RateDecay, 3> decays = {
    {{RateDecay::None, "none"}, {RateDecay::Linear, "linear"}, {RateDecay::Cosine, "cosine"}}};
constexpr std::uint64_t most_steps = 1'000'000'000;

void require_fraction(MappingReader& model, const std::string& key, double value)
{
  if (value >= 1) model.add_fault(key, fmt::format("{} is not below 1", value));
}

void read_rate(MappingReader& model, Training& training)
{
  training.learning_rate = model.optional_number("learning_rate").value_or(training.learning_rate);
  training.warmup_steps = model.optional_count("warmup_steps", 0, most_steps).value_or(0);
  if (const auto decay = model.optional_choice("learning_rate_decay", names_in(decays))) {
    training.decay = *value_in(decays, *decay);
  }
  const auto decay_steps = model.optional_count("decay_steps", 1, most_steps);
  const auto lowest = model.optional_number("min_learning_rate");
  training.decay_steps = decay_steps.value_or(0);
  training.min_learning_rate = lowest.value_or(0);
  if (training.decay == RateDecay::None) {
    constexpr auto alone = "goes with learning_rate_decay: linear or cosine; leave it out, or write that";
    if (decay_steps) model.add_fault("decay_steps", alone);
    if (lowest) model.add_fault("min_learning_rate", alone);
    return;
  }
  if (!model.has("decay_steps")) {
    model.add_fault("learning_rate_decay", fmt::format("{} without decay_steps; write the step at which the decay ends",
                                                       name_in(decays, training.decay)));
  }
  if (decay_steps && *decay_steps <= training.warmup_steps) {
    model.add_fault("decay_steps",
                    fmt::format("{} is not above warmup_steps, {}", *decay_steps, training.warmup_steps));
  }
  if (training.min_learning_rate > training.learning_rate) {
    model.add_fault("min_learning_rate",
                    fmt::format("{} is above learning_rate, {}", training.min_learning_rate, training.learning_rate));
  }
}

/// Reads what only some optimizers have.
void read_moments(MappingReader& model, Optimizer optimizer, Training& training)
{
  const auto read = [&](const std::string& key, double& value, bool has_it, const char* optimizers) {
    const auto given = model.optional_number(key);
    if (given && !has_it) model.add_fault(key, fmt::format("goes with optimizer: {}; leave it out", optimizers));
    if (given) value = *given;
  };
  const bool is_adam = optimizer == Optimizer::Adam || optimizer == Optimizer::AdamW;
  read("beta1", training.beta1, is_adam, "adam or adamw");
  read("beta2", training.beta2, is_adam, "adam or adamw");
  read("epsilon", training.epsilon, is_adam, "adam or adamw");
  read("momentum", training.momentum, optimizer == Optimizer::Momentum, "momentum");
  require_fraction(model, "beta1", training.beta1);
  require_fraction(model, "beta2", training.beta2);
  require_fraction(model, "momentum", training.momentum);
  if (training.epsilon == 0) model.add_fault("epsilon", "is 0, by which updates may divide; write a positive number");
}

}  // namespace

double learning_rate_at(const Training& training, std::uint64_t step)
{
  const auto ratio = [](std::uint64_t steps, std::uint64_t of) {
    return static_cast<double>(steps) / static_cast<double>(of);
  };
  const std::uint64_t begin = training.warmup_steps;
  if (step < begin) return training.learning_rate * ratio(step, begin);
  if (training.decay == RateDecay::None) return training.learning_rate;
  const double decayed = std::min(1.0, ratio(step - begin, training.decay_steps - begin));
  const double left =
      training.decay == RateDecay::Linear ? 1 - decayed : (1 + std::cos(std::numbers::pi * decayed)) / 2;
  return training.min_learning_rate + (training.learning_rate - training.min_learning_rate) * left;
}

Training read_training(MappingReader& model, Optimizer optimizer, bool has_dropout)
{
  Training training;
  read_rate(model, training);
  read_moments(model, optimizer, training);
  training.weight_decay = model.optional_number("weight_decay").value_or(training.weight_decay);
  if (has_dropout) training.dropout = model.optional_number("dropout").value_or(training.dropout);
  require_fraction(model, "dropout", training.dropout);
  training.clip_norm = model.optional_number("clip_norm");
  if (training.clip_norm && *training.clip_norm == 0) model.add_fault("clip_norm", "is 0; write a positive norm");
  return training;
}

}  // namespace isobar
