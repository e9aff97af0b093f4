#include "exec/random.hpp"

#include <ATen/ATen.h>

namespace isobar::exec {

std::uint64_t mixed(std::initializer_list<std::uint64_t> words)
{
  std::uint64_t state = 0;
  for (const auto word : words) {
    state += word + 0x9e3779b97f4a7c15U;
    state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9U;
    state = (state ^ (state >> 27U)) * 0x94d049bb133111ebU;
    state ^= state >> 31U;
  }
  return state;
}

at::Generator generator_for(Stream stream, std::initializer_list<std::uint64_t> words, const std::string& device)
{
  // A clone is how a generator of any device is had without naming the device's classes; the seed replaces its state.
  auto generator = at::globalContext().defaultGenerator(at::Device(device)).clone();
  generator.set_current_seed(mixed({static_cast<std::uint64_t>(stream), mixed(words)}));
  return generator;
}

}  // namespace isobar::exec
