#include "core/plan/sharding.hpp"

#include "core/errors.hpp"

namespace isobar {

namespace {

/// What the other replicas have of something that all divide.
double of_others(double bytes, std::size_t replicas)
{
  return bytes * static_cast<double>(replicas - 1) / static_cast<double>(replicas);
}

}  // namespace

double held_bytes(const ParameterBytes& bytes, Sharding sharding, std::size_t replicas)
{
  ensure(replicas > 0, "a stage has replicas");
  double held = bytes.all();
  if (sharding >= Sharding::Optimizer) held -= of_others(bytes.optimizer, replicas);
  if (sharding >= Sharding::Gradients) held -= of_others(bytes.gradient, replicas);
  if (sharding >= Sharding::Parameters) held -= of_others(bytes.parameter, replicas);
  return held;
}

double unsummed_gradient_bytes(const ParameterBytes& bytes, Sharding sharding, std::size_t replicas)
{
  return sharding >= Sharding::Gradients ? of_others(bytes.gradient, replicas) : 0;
}

double gathered_parameter_bytes(const ParameterBytes& bytes, Sharding sharding, std::size_t replicas)
{
  if (sharding < Sharding::Parameters) return 0;
  return bytes.gathered.value_or(of_others(bytes.parameter, replicas));
}

double divided_part(double parameters, double of_experts, std::size_t replicas, std::size_t copies)
{
  if (of_experts == 0) return 1 / static_cast<double>(replicas);
  const double own =
      (parameters - of_experts) / static_cast<double>(replicas) + of_experts / static_cast<double>(copies);
  return own / parameters;
}

}  // namespace isobar
