#include "exec/model/random.hpp"

#include <ATen/ATen.h>

namespace isobar::exec {

at::Generator generator_for(RandomStream stream, std::initializer_list<std::uint64_t> words, const std::string& device)
{
  // Cloning makes a generator of any device without naming the device's classes; the seed replaces its state.
  auto generator = at::globalContext().defaultGenerator(at::Device(device)).clone();
  generator.set_current_seed(mixed({static_cast<std::uint64_t>(stream), mixed(words)}));
  return generator;
}

}  // namespace isobar::exec
