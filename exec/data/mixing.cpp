#include "exec/data/mixing.hpp"

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

}  // namespace isobar::exec
